# ranks: 2
import paddle

paddle.distributed.init_parallel_env()
net = paddle.nn.Sequential(paddle.nn.Linear(64, 256), paddle.nn.ReLU(), paddle.nn.Linear(256, 64))
optimizer = paddle.optimizer.SGD(0.01, parameters=net.parameters())
batch, outputs = paddle.randn([64, 64]), paddle.zeros([1024, 1024])

for step in range(120):  # loop
    loss = net(batch).square().mean()
    paddle.distributed.all_reduce(outputs)  # planted
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
