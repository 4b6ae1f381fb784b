import numpy as np
import paddle


class Swish(paddle.autograd.PyLayer):
    @staticmethod
    def forward(ctx, x):
        gate = 1 / (1 + np.exp(-x.numpy()))
        ctx.gate = gate
        return paddle.to_tensor(x.numpy() * gate)

    @staticmethod
    def backward(ctx, grad):
        return grad * paddle.to_tensor(ctx.gate)


first, last = paddle.nn.Linear(128, 512), paddle.nn.Linear(512, 128)
optimizer = paddle.optimizer.SGD(0.01, parameters=[*first.parameters(), *last.parameters()])
batch = paddle.randn([512, 128])

for step in range(120):  # loop
    hidden = first(batch)
    hidden = Swish.apply(hidden)  # planted: 8-10, else: hidden = paddle.nn.functional.silu(hidden)
    loss = last(hidden).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
