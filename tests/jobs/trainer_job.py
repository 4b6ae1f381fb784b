"""A tiny random Llama in the Trainer of a package: ``trainer_job.py PACKAGE FOLDER [MODE]``.

MODE is ``off`` (no callback), ``early`` (no callback, and a call of the model with its optimizer ahead of the
training), ``on``, ``stop`` (``stop_training``), ``accumulate``, ``fail`` or
``resume`` (from the checkpoint of another mode after step 4).
Leaves ``losses`` in FOLDER, and its run directory ``log``.
"""

import sys
import time
import warnings
from importlib import import_module
from pathlib import Path

import numpy as np
import paddle

warnings.simplefilter("ignore")
PACKAGE, FOLDER, MODE = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
trainer = import_module(f"{PACKAGE}.trainer")
transformers = import_module(f"{PACKAGE}.transformers")
# What makes PaddleFormers 1.2.0 train a random Llama on a CPU.
CPU = {} if PACKAGE == "paddlenlp" else {"amp_master_grad": False}
LLAMA = {} if PACKAGE == "paddlenlp" else {"fuse_rms_norm": False}


class Tokens(paddle.io.Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        tokens = ((np.arange(16) * (index + 1)) % 60).astype("int64")
        return {"input_ids": tokens, "labels": tokens}


class Watch(trainer.TrainerCallback):
    """Keeps losses; makes evaluations slow; raises where it is asked to."""

    def __init__(self):
        super().__init__()
        self.losses = []

    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            self.losses.append(f"{state.global_step} {logs['loss']}")

    def on_prediction_step(self, args, state, control, **kwargs):
        time.sleep(0.2)

    def on_step_begin(self, args, state, control, **kwargs):
        if MODE == "fail" and state.global_step == 5:
            raise ValueError("the training's own")


if MODE == "resume" and PACKAGE == "paddleformers":  # it loads a checkpoint by Fleet's topology
    paddle.distributed.fleet.init(is_collective=True)
paddle.seed(0)
model = transformers.LlamaForCausalLM(
    transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=32,
        **LLAMA,
    )
)
arguments = trainer.TrainingArguments(
    output_dir=str(FOLDER / "out"),
    max_steps=10,
    per_device_train_batch_size=2,
    per_device_eval_batch_size=2,
    gradient_accumulation_steps=2 if MODE == "accumulate" else 1,
    logging_steps=1,
    evaluation_strategy="steps",
    eval_steps=4,
    save_strategy="steps",
    save_steps=4,
    do_train=True,
    do_eval=True,
    device="cpu",
    seed=1,
    disable_tqdm=True,
    report_to=[],
    **CPU,
)
watch = Watch()
callbacks = [watch]
if MODE not in ("off", "early"):
    PpprofCallback = import_module(f"ppprof.integrations.{PACKAGE}").PpprofCallback
    block = {
        "enable": True,
        "scheduler": {"fail": [1, 90], "resume": [1, 5]}.get(MODE, [5, 7]),
        "profiler_log": str(FOLDER / "log"),
        "stop_training": MODE == "stop",
    }
    callbacks.append(PpprofCallback(block))
optimizer = None
if MODE == "early":
    optimizer = paddle.optimizer.AdamW(parameters=model.parameters())
    model(paddle.to_tensor(Tokens()[0]["input_ids"][None]))
trainer.Trainer(
    model=model,
    args=arguments,
    train_dataset=Tokens(),
    eval_dataset=Tokens(),
    callbacks=callbacks,
    optimizers=(optimizer, None),
).train(resume_from_checkpoint=str(FOLDER / "out/checkpoint-4") if MODE == "resume" else None)
(FOLDER / "losses").write_text("\n".join(watch.losses))
