import paddle


class WindowMean(paddle.nn.Layer):
    def forward(self, x):
        parts = []
        for i in range(96):
            parts.append(x[:, i : i + 4].mean(axis=1, keepdim=True))  # planted
        return paddle.concat(parts, axis=1)


net = paddle.nn.Sequential(paddle.nn.Linear(100, 100), WindowMean(), paddle.nn.Linear(96, 8))
optimizer = paddle.optimizer.SGD(0.01, parameters=net.parameters())

for step in range(60):  # loop
    loss = (net(paddle.randn([256, 100])) ** 2).mean()
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
