import paddle
from paddle.distributed.fleet.utils import recompute

blocks = [
    paddle.nn.Sequential(paddle.nn.Linear(256, 256), paddle.nn.GELU(), paddle.nn.Linear(256, 256))
    for _ in range(3)
]
parameters = [parameter for block in blocks for parameter in block.parameters()]
optimizer = paddle.optimizer.SGD(0.01, parameters=parameters)
batch = paddle.randn([64, 256])
batch.stop_gradient = False

for step in range(120):  # loop
    x = batch
    for block in blocks:
        x = recompute(block, x)  # planted, else: x = block(x)
    loss = x.square().mean()
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
