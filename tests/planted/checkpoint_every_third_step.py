import paddle

net = paddle.nn.Sequential(
    paddle.nn.Linear(256, 1024), paddle.nn.ReLU(), paddle.nn.Linear(1024, 256)
)
optimizer = paddle.optimizer.AdamW(0.001, parameters=net.parameters())
batch = paddle.randn([64, 256])

for step in range(120):  # loop
    loss = net(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
    if step % 3 == 0:
        paddle.save({**net.state_dict(), **optimizer.state_dict()}, "net.pdparams")  # planted
