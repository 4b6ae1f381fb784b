import paddle

net = paddle.nn.Sequential(paddle.nn.Linear(8, 256), paddle.nn.Tanh(), paddle.nn.Linear(256, 1))
optimizer = paddle.optimizer.Adam(1e-3, parameters=net.parameters())
weights = {"fit": 1.0, "smooth": 0.0}


def losses(x):
    y = net(x)
    terms = {"fit": (y - x.sum(1, keepdim=True)).square().mean()}
    slope = paddle.grad(y, x, create_graph=True)[0]
    terms["smooth"] = (
        slope.square().mean()
    )  # planted: 11-13, else: terms["smooth"] = y.detach().mean()
    return sum(weights[name] * term for name, term in terms.items())


for step in range(60):  # loop
    x = paddle.randn([2048, 8])
    x.stop_gradient = False
    losses(x).backward()
    optimizer.step()
    optimizer.clear_grad()
