import paddle

net = paddle.nn.Sequential(
    paddle.nn.Linear(256, 1024), paddle.nn.ReLU(), paddle.nn.Linear(1024, 256)
)
optimizer = paddle.optimizer.SGD(0.01, parameters=net.parameters())
batch = paddle.randn([256, 256])

for step in range(120):  # loop
    out = net(batch)
    loss, penalty = out.square().mean(), out.abs().mean()
    loss.backward(retain_graph=True)  # planted: 12-13, else: penalty = loss + penalty
    penalty.backward()
    optimizer.step()
    optimizer.clear_grad()
