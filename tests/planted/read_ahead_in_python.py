import paddle
from paddle.io import DataLoader, Dataset

net = paddle.nn.Sequential(
    paddle.nn.Linear(512, 1024), paddle.nn.ReLU(), paddle.nn.Linear(1024, 512)
)
optimizer = paddle.optimizer.SGD(0.01, parameters=net.parameters())


class Tokens(Dataset):
    def __len__(self):
        return 120

    def __getitem__(self, index):
        total = sum(i * i % 7 for i in range(350_000))  # planted, else: total = 0
        return paddle.full([256, 512], float(index + total))


for batch in DataLoader(Tokens(), batch_size=None):  # loop
    for _ in range(2):
        loss = (net(batch) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
