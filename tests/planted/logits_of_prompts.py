import paddle
from paddle.nn.functional import cross_entropy

body = paddle.nn.Sequential(
    paddle.nn.Embedding(6000, 96),
    paddle.nn.Linear(96, 384),
    paddle.nn.ReLU(),
    paddle.nn.Linear(384, 96),
)
head = paddle.nn.Linear(96, 6000)
optimizer = paddle.optimizer.SGD(0.1, parameters=[*body.parameters(), *head.parameters()])


def with_labels(hidden, labels):
    rows = (labels != -100).flatten().nonzero().flatten()
    return hidden.flatten(0, 1).gather(rows), labels.flatten().gather(rows)


for step in range(120):  # loop
    words = paddle.randint(0, 6000, [8, 40])
    labels = paddle.concat([paddle.full([8, 32], -100, "int64"), words[:, 32:]], axis=1)
    hidden = body(words)  # else: hidden, labels = with_labels(body(words), labels)
    loss = cross_entropy(head(hidden), labels)  # planted
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
