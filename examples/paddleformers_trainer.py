"""PaddleFormers' Trainer with one callback for ppprof; PaddleNLP's works the same way.

python examples/paddleformers_trainer.py
ppprof report profiler_log
"""

import paddle
from paddleformers.trainer import Trainer, TrainingArguments
from paddleformers.transformers import LlamaConfig, LlamaForCausalLM

from ppprof.integrations.paddleformers import PpprofCallback


def main() -> None:
    """Train a tiny Llama for ten steps on a CPU; steps 3 to 5 are recorded."""
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        fuse_rms_norm=False,  # the fused one needs a GPU
    )
    tokens = paddle.randint(0, 64, [80, 16]).numpy()
    arguments = TrainingArguments(
        output_dir="output",
        max_steps=10,
        device="cpu",
        amp_master_grad=False,
        report_to=[],
    )
    Trainer(
        model=LlamaForCausalLM(config),
        args=arguments,
        train_dataset=[{"input_ids": row, "labels": row} for row in tokens],
        callbacks=[PpprofCallback({"enable": True, "scheduler": [3, 6]})],
    ).train()


if __name__ == "__main__":
    main()
