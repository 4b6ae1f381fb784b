import gc

import paddle

net = paddle.nn.Sequential(paddle.nn.Linear(128, 512), paddle.nn.ReLU(), paddle.nn.Linear(512, 128))
optimizer = paddle.optimizer.SGD(0.01, parameters=net.parameters())
batch = paddle.randn([128, 128])

for step in range(120):  # loop
    loss = net(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
    gc.collect()  # planted
