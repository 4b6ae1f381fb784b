# ranks: 2
import paddle

paddle.distributed.init_parallel_env()
rank = paddle.distributed.get_rank()
net = paddle.nn.Sequential(*[paddle.nn.Linear(128, 128) for _ in range(16)])
own = net.parameters()[rank::2]
optimizer = paddle.optimizer.AdamW(0.001, parameters=own)
batch = paddle.randn([64, 128])


def share(parameters):
    for number, parameter in enumerate(parameters):
        paddle.distributed.broadcast(parameter, number % 2)  # planted: 22


for step in range(120):  # loop
    loss = net(batch).square().mean()
    loss.backward()
    optimizer.step()
    net.clear_gradients()
    share(net.parameters())
