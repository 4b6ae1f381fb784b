import numpy as np
import paddle

net = paddle.nn.Sequential(paddle.nn.Linear(128, 512), paddle.nn.ReLU(), paddle.nn.Linear(512, 128))
optimizer = paddle.optimizer.SGD(0.01, parameters=net.parameters())
images = np.random.rand(512, 128).astype("float32")


def augment(images):
    noise = np.random.normal(0, 0.1, images.shape)
    return np.sort(images + noise, axis=1).astype("float32")


for step in range(120):  # loop
    batch = paddle.to_tensor(augment(images))  # planted: 9-11
    loss = net(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
