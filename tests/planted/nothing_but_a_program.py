import paddle


class Net(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.first = paddle.nn.Linear(64, 64)
        self.second = paddle.nn.Linear(64, 64)

    def forward(self, x):
        for _ in range(24):
            x = x + 0.1 * self.second(paddle.tanh(self.first(x)))
        return x


net = paddle.jit.to_static(Net(), full_graph=True)
optimizer = paddle.optimizer.SGD(0.01, parameters=net.parameters())
batch = paddle.randn([64, 64])

for step in range(120):  # loop
    loss = net(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
