import paddle

net = paddle.nn.Sequential(
    paddle.nn.Linear(256, 1024), paddle.nn.ReLU(), paddle.nn.Linear(1024, 256)
)
optimizer = paddle.optimizer.SGD(0.01, parameters=net.parameters())
batches = [paddle.randn([256, 256]) for _ in range(4)]

for step in range(120):  # loop
    loss = net(batches[step % 4]).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
