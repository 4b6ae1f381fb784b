import numpy as np
import paddle

net = paddle.nn.Sequential(paddle.nn.Linear(128, 256), paddle.nn.ReLU(), paddle.nn.Linear(256, 128))
optimizer = paddle.optimizer.SGD(0.01, parameters=net.parameters())


class Images(paddle.io.Dataset):
    def __len__(self):
        return 32 * 120

    def __getitem__(self, index):
        image = np.random.rand(256, 128)
        image = np.sort(image, axis=0)
        return image[0].astype("float32")


loader = paddle.io.DataLoader(Images(), batch_size=32, num_workers=0, use_buffer_reader=False)

for batch in loader:  # loop, planted: 13-15
    loss = net(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
