import paddle


class Clipped(paddle.nn.Layer):
    def forward(self, x):
        for row in range(x.shape[0]):
            if x[row].max() > 3:  # planted
                x = x * 0.99
        return x


net = paddle.nn.Sequential(paddle.nn.Linear(128, 128), Clipped(), paddle.nn.Linear(128, 128))
optimizer = paddle.optimizer.SGD(0.01, parameters=net.parameters())
batch = paddle.randn([96, 128])

for step in range(120):  # loop
    loss = net(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
