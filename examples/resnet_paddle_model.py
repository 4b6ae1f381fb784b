"""ResNet-18 trained by `paddle.Model.fit`, with one callback for ppprof.

python examples/resnet_paddle_model.py
ppprof summary profiler_log --views op
"""

import paddle
from paddle.vision.models import resnet18

from ppprof.integrations.paddle_model import PpprofCallback


def main() -> None:
    """Train ten batches of random images; batches 3 to 5 are recorded."""
    images, labels = paddle.rand([40, 3, 32, 32]), paddle.randint(0, 10, [40, 1])
    network = resnet18(num_classes=10)
    model = paddle.Model(network)
    model.prepare(
        paddle.optimizer.Momentum(learning_rate=0.01, parameters=network.parameters()),
        paddle.nn.CrossEntropyLoss(),
    )
    model.fit(
        paddle.io.TensorDataset([images, labels]),
        batch_size=4,
        epochs=1,
        verbose=0,
        callbacks=[PpprofCallback({"enable": True, "scheduler": [3, 6], "record_shapes": True})],
    )


if __name__ == "__main__":
    main()
