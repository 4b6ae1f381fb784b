import paddle

net = paddle.nn.Sequential(paddle.nn.Linear(128, 512), paddle.nn.ReLU(), paddle.nn.Linear(512, 128))
optimizer = paddle.optimizer.SGD(0.01, parameters=net.parameters())
batch = paddle.randn([128, 128])


def mask(size):
    return [[1.0 if j <= i else 0.0 for j in range(size)] for i in range(size)]


for step in range(120):  # loop
    causal = paddle.to_tensor(mask(128))  # planted: 9
    loss = (net(batch) * causal).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
