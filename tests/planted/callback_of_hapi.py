import json

import paddle


class History(paddle.callbacks.Callback):
    def on_train_batch_end(self, step, logs=None):  # loop
        weights = [p.numpy().tolist() for p in self.model.parameters()]
        self.size = len(json.dumps(weights))  # planted: 8-9


net = paddle.nn.Sequential(paddle.nn.Linear(64, 256), paddle.nn.ReLU(), paddle.nn.Linear(256, 8))
model = paddle.Model(net)
optimizer = paddle.optimizer.SGD(0.01, parameters=net.parameters())
model.prepare(optimizer, paddle.nn.CrossEntropyLoss())
data = [(paddle.randn([16, 64]), paddle.zeros([16, 1], "int64")) for _ in range(120)]
model.fit(data, epochs=1, verbose=0, callbacks=[History()])
