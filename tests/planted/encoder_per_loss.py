import paddle


class Net(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.encoder = paddle.nn.Sequential(
            paddle.nn.Linear(256, 1024), paddle.nn.ReLU(), paddle.nn.Linear(1024, 256)
        )
        self.kind = paddle.nn.Linear(256, 10)
        self.size = paddle.nn.Linear(256, 1)

    def losses(self, x, labels):
        features = self.encoder(x)
        first = paddle.nn.functional.cross_entropy(self.kind(features), labels)
        features = self.encoder(x)  # planted: 16, else: pass
        return first + self.size(features).square().mean()


net = Net()
optimizer = paddle.optimizer.SGD(0.001, parameters=net.parameters())
batch, labels = paddle.randn([256, 256]), paddle.randint(0, 10, [256])

for step in range(120):  # loop
    loss = net.losses(batch, labels)
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
