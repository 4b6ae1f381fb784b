# ranks: 2
import time

import paddle

paddle.distributed.init_parallel_env()
rank = paddle.distributed.get_rank()
net = paddle.nn.Sequential(paddle.nn.Linear(128, 512), paddle.nn.ReLU(), paddle.nn.Linear(512, 128))
net = paddle.DataParallel(net)
optimizer = paddle.optimizer.SGD(0.01, parameters=net.parameters())


class Files(paddle.io.Dataset):
    def __len__(self):
        return 8 * 120

    def __getitem__(self, index):
        time.sleep(0.004 * rank)
        return paddle.ones([128])


loader = paddle.io.DataLoader(Files(), batch_size=8, num_workers=0, use_buffer_reader=False)

for batch in loader:  # loop, planted: 18-19
    loss = net(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
