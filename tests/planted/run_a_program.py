import subprocess

import paddle

net = paddle.nn.Sequential(paddle.nn.Linear(128, 512), paddle.nn.ReLU(), paddle.nn.Linear(512, 128))
optimizer = paddle.optimizer.SGD(0.01, parameters=net.parameters())
batch = paddle.randn([512, 128])


def free_space():
    return subprocess.check_output(["df", "/tmp"], text=True)


for step in range(120):  # loop
    loss = net(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
    free = free_space()  # planted: 11
