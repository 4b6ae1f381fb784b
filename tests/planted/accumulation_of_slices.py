import paddle

net = paddle.nn.Sequential(*[paddle.nn.Linear(128, 128) for _ in range(6)])
optimizer = paddle.optimizer.SGD(0.01, parameters=net.parameters())
batch = paddle.randn([128, 128])

for step in range(120):  # loop
    for part in batch.split(32):  # planted: 8-10, else: for part in [batch]:
        loss = net(part).square().mean() / 32
        loss.backward()
    optimizer.step()
    optimizer.clear_grad()
