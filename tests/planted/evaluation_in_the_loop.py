import paddle

net = paddle.nn.Sequential(paddle.nn.Linear(128, 512), paddle.nn.ReLU(), paddle.nn.Linear(512, 16))
optimizer = paddle.optimizer.SGD(0.01, parameters=net.parameters())
held_out = [paddle.randn([1024, 128]) for _ in range(8)]


def evaluate():
    net.eval()
    with paddle.no_grad():
        losses = [(net(batch) ** 2).mean() for batch in held_out]
    net.train()
    return paddle.stack(losses).mean()


for step in range(60):  # loop
    loss = (net(paddle.randn([1024, 128])) ** 2).mean()
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
    score = evaluate()  # planted
