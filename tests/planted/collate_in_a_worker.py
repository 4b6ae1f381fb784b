import numpy as np
import paddle

net = paddle.nn.Sequential(paddle.nn.Embedding(1000, 64), paddle.nn.Linear(64, 128))
optimizer = paddle.optimizer.SGD(0.01, parameters=net.parameters())
words = [list(range(3000))] * (64 * 120)


def lower(words):
    return [word % 1000 for word in words]


def collate(samples):
    return np.array([lower(words) for words in samples], "int64")


loader = paddle.io.DataLoader(words, batch_size=64, collate_fn=collate, num_workers=1)

for ids in loader:  # loop, planted: 10-14
    loss = net(ids[:, :32]).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
