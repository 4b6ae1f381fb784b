import json

import paddle

net = paddle.nn.Sequential(paddle.nn.Linear(64, 256), paddle.nn.ReLU(), paddle.nn.Linear(256, 8))
optimizer = paddle.optimizer.SGD(0.01, parameters=net.parameters())
batch = paddle.randn([2048, 64])


def log(step, loss):
    weights = {name: value.numpy().tolist() for name, value in net.state_dict().items()}
    with open("log.jsonl", "a") as file:
        file.write(json.dumps({"step": step, "loss": float(loss), "weights": weights}) + "\n")


for step in range(120):  # loop
    loss = net(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
    log(step, loss)  # planted: 10-13
