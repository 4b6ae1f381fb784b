import os
import tempfile

import numpy as np
import paddle
from PIL import Image

folder = tempfile.mkdtemp()
for i in range(16):
    Image.fromarray(np.random.randint(0, 255, (96, 96, 3), "uint8")).save(f"{folder}/{i}.png")


class Images(paddle.io.Dataset):
    def __len__(self):
        return 120 * 16

    def __getitem__(self, i):
        image = Image.open(os.path.join(folder, f"{i % 16}.png")).convert("L").resize((24, 24))
        return np.asarray(image, "float32").reshape(-1) / 255


net = paddle.nn.Sequential(paddle.nn.Linear(576, 256), paddle.nn.ReLU(), paddle.nn.Linear(256, 64))
optimizer = paddle.optimizer.SGD(0.01, parameters=net.parameters())

for batch in paddle.io.DataLoader(Images(), batch_size=16):  # loop, planted: 18-19
    loss = net(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
