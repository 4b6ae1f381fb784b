import socket
import threading
import time

import paddle

server = socket.create_server(("127.0.0.1", 0))


def serve():
    while True:
        connection, _ = server.accept()
        connection.recv(64)
        time.sleep(0.008)
        connection.sendall(b"ok")
        connection.close()


def report(value):
    with socket.create_connection(server.getsockname()) as connection:
        connection.sendall(str(value).encode())
        return connection.recv(8)


threading.Thread(target=serve, daemon=True).start()
net = paddle.nn.Sequential(paddle.nn.Linear(128, 512), paddle.nn.ReLU(), paddle.nn.Linear(512, 128))
optimizer = paddle.optimizer.SGD(0.01, parameters=net.parameters())
batch = paddle.randn([512, 128])

for step in range(120):  # loop
    loss = net(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
    report(step)  # planted: 20-22
