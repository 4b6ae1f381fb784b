# ranks: 2
import paddle

paddle.distributed.init_parallel_env()


class Net(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.used = paddle.nn.Linear(64, 64)
        self.heads = paddle.nn.LayerList([paddle.nn.Linear(64, 4096) for _ in range(4)])

    def forward(self, x):
        return self.used(x)


net = Net()
reduced = net  # planted: 25, else: reduced = net.used
model = paddle.DataParallel(reduced, find_unused_parameters=True)
optimizer = paddle.optimizer.SGD(0.01, parameters=net.used.parameters())
batch = paddle.randn([64, 64])

for step in range(120):  # loop
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
