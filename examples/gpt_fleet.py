"""A small GPT, data parallel by Fleet, on two ranks; the script knows nothing of ppprof.

ppprof run --nproc 2 examples/gpt_fleet.py
ppprof ranks profiler_log

Fleet's tensor-parallel layers need a GPU; configs/gpt trains with all axes on a CPU, too.
"""

import paddle
from paddle import nn
from paddle.distributed import fleet

VOCABULARY, WIDTH, LENGTH, NUM_LAYERS = 128, 64, 32, 2


class Gpt(nn.Layer):
    """Embedding, causal Transformer layers and logits."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, nhead=4, dim_feedforward=4 * WIDTH, dropout=0.0)
        self.layers = nn.TransformerEncoder(layer, NUM_LAYERS)
        self.logits = nn.Linear(WIDTH, VOCABULARY)
        self.mask = paddle.triu(paddle.full([LENGTH, LENGTH], float("-inf")), 1)

    def forward(self, tokens: paddle.Tensor) -> paddle.Tensor:
        """Return logits of shape (batch, LENGTH, VOCABULARY)."""
        return self.logits(self.layers(self.embed(tokens), self.mask))


def main() -> None:
    """Train 40 steps on random tokens; ppprof chooses ten of them."""
    strategy = fleet.DistributedStrategy()
    strategy.hybrid_configs = {"dp_degree": paddle.distributed.get_world_size()}
    fleet.init(is_collective=True, strategy=strategy)
    model = fleet.distributed_model(Gpt())
    optimizer = paddle.optimizer.AdamW(parameters=model.parameters())
    optimizer = fleet.distributed_optimizer(optimizer)
    for _ in range(40):
        tokens = paddle.randint(0, VOCABULARY, [4, LENGTH + 1])
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits, tokens[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()


if __name__ == "__main__":
    main()
