import random

import paddle

layers = [layer for _ in range(4) for layer in (paddle.nn.Linear(64, 64), paddle.nn.GELU())]
net = paddle.nn.Sequential(paddle.nn.Embedding(2000, 64), *layers, paddle.nn.Linear(64, 20))
optimizer = paddle.optimizer.AdamW(0.001, parameters=net.parameters())
model = paddle.jit.to_static(net, full_graph=True)
lengths = random.Random(0).sample(range(20, 400), 120)

for length in lengths:  # loop
    words, tags = paddle.randint(0, 2000, [4 * length]), paddle.randint(0, 20, [4 * length])
    scores = model(words)  # planted
    loss = paddle.nn.functional.cross_entropy(scores, tags)
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
