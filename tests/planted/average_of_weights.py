import copy

import paddle

layers = [layer for _ in range(8) for layer in (paddle.nn.Linear(160, 160), paddle.nn.ReLU())]
net = paddle.nn.Sequential(*layers)
shadow = copy.deepcopy(net)
optimizer = paddle.optimizer.SGD(0.01, parameters=net.parameters())
batch = paddle.randn([128, 160])


def update_average(decay):
    with paddle.no_grad():
        for old, new in zip(shadow.parameters(), net.parameters()):
            old.set_value(old * decay + new * (1 - decay))


for step in range(120):  # loop
    loss = net(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
    update_average(0.999)  # planted: 14-15
