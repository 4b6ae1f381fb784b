import paddle

net = paddle.nn.Sequential(
    paddle.nn.Linear(256, 1024), paddle.nn.ReLU(), paddle.nn.Linear(1024, 256)
)
optimizer = paddle.optimizer.SGD(0.0, parameters=net.parameters())
batch, before = paddle.randn([256, 256]), None

for step in range(120):  # loop
    out = net(batch)
    out.square().mean().backward(retain_graph=True)
    if before is not None:  # another graph than that of this step
        before.abs().mean().backward()
    before = out
    optimizer.step()
    optimizer.clear_grad()
