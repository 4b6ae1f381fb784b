import sys

import paddle

net = paddle.nn.Sequential(paddle.nn.Linear(128, 512), paddle.nn.ReLU(), paddle.nn.Linear(512, 128))
optimizer = paddle.optimizer.SGD(0.01, parameters=net.parameters())
batch = paddle.randn([512, 128])


def show(step):
    for name, value in net.named_parameters():
        print(step, name, value.grad, file=sys.stderr)


for step in range(120):  # loop
    loss = net(batch).square().mean()
    loss.backward()
    show(step)  # planted: 12
    optimizer.step()
    optimizer.clear_grad()
