import paddle

net = paddle.nn.Sequential(paddle.nn.Linear(128, 256), paddle.nn.ReLU(), paddle.nn.Linear(256, 16))
optimizer = paddle.optimizer.SGD(0.01, parameters=net.parameters())
batch, held_out = paddle.randn([512, 128]), [paddle.randn([512, 128]) for _ in range(4)]


def evaluate():
    net.eval()
    with paddle.no_grad():
        losses = [net(batch).square().mean() for batch in held_out]
    net.train()
    return paddle.stack(losses).mean()


for step in range(120):  # loop
    loss = net(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
    score = evaluate()  # planted: 8-13
