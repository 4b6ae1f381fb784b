import numpy as np
import paddle

scale = paddle.to_tensor(np.linspace(0.5, 1.5, 512))


class Scaled(paddle.nn.Layer):
    def forward(self, x):
        x = x * scale  # planted, else: x = x * scale.astype("float32")
        for _ in range(4):
            x = paddle.tanh(x + 1)
        return x.astype("float32")


net = paddle.nn.Sequential(paddle.nn.Linear(128, 512), Scaled(), paddle.nn.Linear(512, 128))
optimizer = paddle.optimizer.SGD(0.01, parameters=net.parameters())
batch = paddle.randn([512, 128])

for step in range(120):  # loop
    loss = net(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
