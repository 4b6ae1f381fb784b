import paddle

net = paddle.nn.Sequential(
    paddle.nn.Linear(256, 2048), paddle.nn.ReLU(), paddle.nn.Linear(2048, 256)
)
optimizer = paddle.optimizer.AdamW(0.001, parameters=net.parameters())

for step in range(60):  # loop
    loss = (net(paddle.randn([64, 256])) ** 2).mean()
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
    if step % 3 == 0:
        paddle.save(net.state_dict(), "net.pdparams")
        paddle.save(optimizer.state_dict(), "net.pdopt")  # planted
