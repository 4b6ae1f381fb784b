import paddle


class Recurrent(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.cell = paddle.nn.GRUCell(32, 64)

    def forward(self, x):
        state = paddle.zeros([x.shape[0], 64])
        for i in range(x.shape[1]):
            _, state = self.cell(x[:, i], state)  # planted
        return state


net = paddle.nn.Sequential(Recurrent(), paddle.nn.Linear(64, 8))
optimizer = paddle.optimizer.SGD(0.01, parameters=net.parameters())
batch = paddle.randn([16, 40, 32])

for step in range(120):  # loop
    loss = net(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
