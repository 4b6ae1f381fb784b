import paddle
from paddle.nn.functional import cross_entropy, embedding, one_hot  # noqa: F401

table = paddle.create_parameter([12000, 64], "float32")
net = paddle.nn.Sequential(paddle.nn.Linear(64, 512), paddle.nn.ReLU(), paddle.nn.Linear(512, 20))
optimizer = paddle.optimizer.SGD(0.1, parameters=[table, *net.parameters()])


def embed(ids):
    return one_hot(ids, 12000) @ table  # planted, else: return embedding(ids, table)


for step in range(120):  # loop
    ids, labels = paddle.randint(0, 12000, [128]), paddle.randint(0, 20, [128])
    loss = cross_entropy(net(embed(ids)), labels)
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
