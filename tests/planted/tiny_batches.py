import paddle

net = paddle.nn.Sequential(*[paddle.nn.Linear(64, 64) for _ in range(8)])
optimizer = paddle.optimizer.SGD(0.01, parameters=net.parameters())
batch = paddle.randn([16, 64])

for step in range(120):  # loop
    for sample in batch:  # planted: 8-10, else: for sample in [batch]:
        loss = net(sample).square().mean()
        loss.backward()
    optimizer.step()
    optimizer.clear_grad()
