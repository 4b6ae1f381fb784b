import math

import paddle

net = paddle.nn.Sequential(paddle.nn.Linear(128, 512), paddle.nn.ReLU(), paddle.nn.Linear(512, 128))
batch = paddle.randn([512, 128])


class Warmup(paddle.optimizer.lr.LRScheduler):
    def get_lr(self):
        return sum(math.cos(i) ** 2 for i in range(60_000)) / 60_000_000


schedule = Warmup(0.001)
optimizer = paddle.optimizer.Adam(schedule, parameters=net.parameters())

for step in range(120):  # loop
    loss = net(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
    schedule.step()  # planted: 11
