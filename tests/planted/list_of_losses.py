import paddle

net = paddle.nn.Sequential(paddle.nn.Linear(128, 512), paddle.nn.ReLU(), paddle.nn.Linear(512, 128))
optimizer = paddle.optimizer.SGD(0.01, parameters=net.parameters())
batch = paddle.randn([512, 128])
losses = []

for step in range(120):  # loop
    hidden = net(batch)
    loss = hidden.square().mean()  # planted: 9-10
    loss.backward(retain_graph=True)
    losses.append(loss)
    optimizer.step()
    optimizer.clear_grad()
