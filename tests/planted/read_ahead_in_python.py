import paddle
from paddle.io import DataLoader, Dataset

blocks = [paddle.nn.Sequential(paddle.nn.Linear(256, 256), paddle.nn.ReLU()) for _ in range(16)]
net = paddle.nn.Sequential(*blocks)
optimizer = paddle.optimizer.SGD(0.01, parameters=net.parameters())


class Tokens(Dataset):
    def __len__(self):
        return 120

    def __getitem__(self, index):
        total = sum(i * i % 7 for i in range(450_000))  # planted, else: total = 0
        return paddle.full([128, 256], float(index + total))


for batch in DataLoader(Tokens(), batch_size=None):  # loop
    loss = net(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
