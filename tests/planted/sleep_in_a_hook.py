import time

import paddle

net = paddle.nn.Sequential(paddle.nn.Linear(128, 512), paddle.nn.ReLU(), paddle.nn.Linear(512, 128))
optimizer = paddle.optimizer.SGD(0.01, parameters=net.parameters())
batch = paddle.randn([512, 128])


def watch(layer, inputs, outputs):
    time.sleep(0.01)  # planted


net[1].register_forward_post_hook(watch)

for step in range(120):  # loop
    loss = net(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
