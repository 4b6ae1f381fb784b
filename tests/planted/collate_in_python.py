import numpy as np
import paddle

net = paddle.nn.Sequential(paddle.nn.Embedding(1000, 64), paddle.nn.Linear(64, 128))
optimizer = paddle.optimizer.SGD(0.01, parameters=net.parameters())
words = [list(range(3000))] * (64 * 120)
zeros = np.zeros([64, 3000])


def lower(words):
    return [word % 1000 for word in words]


def collate(samples):
    rows = list(map(lower, samples))  # planted: 11-16, else: rows = zeros
    return np.array(rows, "int64")


loader = paddle.io.DataLoader(words, batch_size=64, collate_fn=collate, use_buffer_reader=False)

for ids in loader:  # loop
    loss = net(ids[:, :32]).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
