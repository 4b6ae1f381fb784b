import paddle

net = paddle.nn.Sequential(
    paddle.nn.Linear(512, 2048), paddle.nn.ReLU(), paddle.nn.Linear(2048, 512)
)
optimizer = paddle.optimizer.SGD(0.01, parameters=net.parameters())
batches = [paddle.randn([512, 512]) for _ in range(4)]

for step in range(60):  # loop
    loss = (net(batches[step % 4]) ** 2).mean()
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
