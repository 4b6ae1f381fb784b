import paddle

net = paddle.nn.Linear(128, 128)
optimizer = paddle.optimizer.SGD(0.01, parameters=net.parameters())
batch = paddle.randn([32, 128])


def decode(x):
    keys = paddle.zeros([32, 1, 128])
    for _ in range(24):
        keys = paddle.concat([keys, x.unsqueeze(1)], axis=1)
        scores = paddle.nn.functional.softmax((keys * x.unsqueeze(1)).sum(-1))
        x = (keys * scores.unsqueeze(-1)).sum(1)
    return x


for step in range(120):  # loop
    with paddle.no_grad():
        context = decode(batch)  # planted: 10-13
    loss = net(context).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
