import paddle

layers = [paddle.nn.Linear(16, 16) for _ in range(60)]
net = paddle.nn.Sequential(*layers)
fused = False  # planted: 12, else: fused = True
optimizer = paddle.optimizer.Adam(0.001, parameters=net.parameters(), use_multi_tensor=fused)
batch = paddle.randn([16, 16])

for step in range(120):  # loop
    loss = net(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
