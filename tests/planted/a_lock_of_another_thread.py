import threading
import time

import paddle

net = paddle.nn.Sequential(paddle.nn.Linear(128, 512), paddle.nn.ReLU(), paddle.nn.Linear(512, 128))
optimizer = paddle.optimizer.SGD(0.01, parameters=net.parameters())
batch = paddle.randn([512, 128])
lock, history = threading.Lock(), []


def upload():
    while True:
        with lock:
            time.sleep(0.02)
        time.sleep(0.002)


threading.Thread(target=upload, daemon=True).start()

for step in range(120):  # loop
    loss = net(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
    with lock:  # planted
        history.append(step)
