import numpy as np
import paddle

net = paddle.nn.Sequential(paddle.nn.Embedding(1000, 64), paddle.nn.Linear(64, 128))
optimizer = paddle.optimizer.SGD(0.01, parameters=net.parameters())
words = [list(range(3000))] * (64 * 120)


def collate(samples):
    longest = max(len(sample) for sample in samples)
    padded = [
        [word % 1000 for word in sample] + [0] * (longest - len(sample)) for sample in samples
    ]
    return np.array(padded, "int64")


loader = paddle.io.DataLoader(words, batch_size=64, collate_fn=collate, use_buffer_reader=False)

for ids in loader:  # loop, planted: 10-14
    loss = (net(ids[:, :32]) ** 2).mean()
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
