import logging

import paddle

layers = [layer for _ in range(8) for layer in (paddle.nn.Linear(128, 128), paddle.nn.ReLU())]
net = paddle.nn.Sequential(*layers)
optimizer = paddle.optimizer.SGD(0.01, parameters=net.parameters())
batch = paddle.randn([128, 128])
logging.basicConfig(filename="activations.log", level=logging.INFO)


def watch(layer, inputs, output):
    logging.info(f"{layer} {float(output.mean())} {float(output.std())}")  # planted


for layer in net:
    layer.register_forward_post_hook(watch)

for step in range(120):  # loop
    loss = net(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
