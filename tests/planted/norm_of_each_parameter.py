import paddle

layers = [layer for _ in range(12) for layer in (paddle.nn.Linear(64, 64), paddle.nn.Tanh())]
net = paddle.nn.Sequential(*layers)
optimizer = paddle.optimizer.SGD(0.01, parameters=net.parameters())
batch = paddle.randn([64, 64])
norms = []

for step in range(120):  # loop
    loss = net(batch).square().mean()
    loss.backward()
    norms = [float(p.grad.norm()) + float(p.norm()) for p in net.parameters()]  # planted
    optimizer.step()
    optimizer.clear_grad()
