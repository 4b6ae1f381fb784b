import re

import paddle

net = paddle.nn.Sequential(paddle.nn.Embedding(1000, 64), paddle.nn.Linear(64, 512))
optimizer = paddle.optimizer.SGD(0.01, parameters=net.parameters())
text = "the quick brown fox jumps over the lazy dog " * 1500


def tokens(text):
    return [hash(word) % 1000 for word in re.findall(r"[a-z]+", text)][:512]


for step in range(120):  # loop
    ids = paddle.to_tensor(tokens(text))  # planted: 11
    loss = net(ids).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
