import numpy as np
import paddle
from paddle.nn.functional import cross_entropy

embed, head = paddle.nn.Embedding(2000, 96), paddle.nn.Linear(96, 20)
mixer = paddle.nn.Sequential(
    paddle.nn.Linear(96, 384), paddle.nn.ReLU(), paddle.nn.Linear(384, 96), paddle.nn.ReLU()
)
layers = paddle.nn.Sequential(embed, mixer, head)
optimizer = paddle.optimizer.SGD(0.1, parameters=layers.parameters())
generator = np.random.RandomState(3)


def padded(samples, width):
    rows = np.zeros([len(samples), width], "int64")
    for row, sample in zip(rows, samples):
        row[: len(sample)] = sample
    return paddle.to_tensor(rows)


for step in range(120):  # loop
    samples = [generator.randint(1, 2000, generator.randint(20, 61)) for _ in range(16)]
    words = embed(padded(samples, 128))  # planted, else: words = embed(padded(samples, 60))
    loss = cross_entropy(head(mixer(words).mean(axis=1)), paddle.randint(0, 20, [16]))
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
