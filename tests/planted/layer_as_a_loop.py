import paddle


class WindowMean(paddle.nn.Layer):
    def forward(self, x):
        parts = []
        for i in range(96):
            parts.append(x[:, i : i + 4].mean(axis=1, keepdim=True))  # planted
        return paddle.concat(parts, axis=1)


windows = WindowMean()
net = paddle.nn.Sequential(paddle.nn.Linear(100, 100), windows, paddle.nn.Linear(96, 8))
optimizer = paddle.optimizer.SGD(0.01, parameters=net.parameters())
batch = paddle.randn([256, 100])

for step in range(120):  # loop
    loss = net(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
