import paddle

net = paddle.nn.Sequential(paddle.nn.Linear(256, 512), paddle.nn.ReLU(), paddle.nn.Linear(512, 256))
teacher = paddle.nn.Sequential(
    paddle.nn.Linear(256, 1024), paddle.nn.ReLU(), paddle.nn.Linear(1024, 256)
)
teacher.eval()
optimizer = paddle.optimizer.SGD(0.01, parameters=net.parameters())
batch = paddle.randn([256, 256])

for step in range(120):  # loop
    target = teacher(batch)  # planted: 14, else: target = teacher(batch).detach()
    loss = (net(batch) - target).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
