# ranks: 2
import time

import paddle

paddle.distributed.init_parallel_env()
rank = paddle.distributed.get_rank()
net = paddle.nn.Sequential(paddle.nn.Linear(128, 512), paddle.nn.ReLU(), paddle.nn.Linear(512, 128))
net = paddle.DataParallel(net)
optimizer = paddle.optimizer.SGD(0.01, parameters=net.parameters())
batch = paddle.randn([64, 128])


def check(loss):
    time.sleep(0.03 * rank)  # planted: 15-20


for step in range(120):  # loop
    loss = net(batch).square().mean()
    check(loss)
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
