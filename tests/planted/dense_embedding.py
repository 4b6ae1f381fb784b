import paddle

sparse = False  # planted: 14, else: sparse = True


class Recommender(paddle.nn.Layer):
    def __init__(self, items):
        super().__init__()
        self.items = paddle.nn.Embedding(items, 32, sparse=sparse)
        self.hidden = paddle.nn.Linear(320, 256)
        self.score = paddle.nn.Linear(256, 1)

    def forward(self, history):
        return self.score(self.hidden(self.items(history).flatten(1)).tanh())


net = Recommender(60000)
optimizer = paddle.optimizer.Adam(0.001, parameters=net.parameters(), lazy_mode=True)
criterion = paddle.nn.BCEWithLogitsLoss()

for step in range(120):  # loop
    history, clicked = paddle.randint(0, 60000, [256, 10]), paddle.randint(0, 2, [256, 1])
    loss = criterion(net(history), clicked.astype("float32"))
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
