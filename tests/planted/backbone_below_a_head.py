import paddle


class Net(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.backbone = paddle.nn.Sequential(
            paddle.nn.Linear(256, 1024), paddle.nn.ReLU(), paddle.nn.Linear(1024, 256)
        )
        self.head = paddle.nn.Linear(256, 10)

    def forward(self, x):
        features = self.backbone(x)  # planted: 13, else: features = self.backbone(x).detach()
        return self.head(features)


net = Net()
optimizer = paddle.optimizer.AdamW(0.001, parameters=net.head.parameters())
batch, labels = paddle.randn([256, 256]), paddle.randint(0, 10, [256])

for step in range(120):  # loop
    loss = paddle.nn.functional.cross_entropy(net(batch), labels)
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
