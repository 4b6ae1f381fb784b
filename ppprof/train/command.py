"""The program of ``tools/train.py``: check config and machine, then train.

The checks run before Paddle is imported, so a typo in a config fails within a second.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ppprof import rundir
from ppprof.config import Config, load_config
from ppprof.config.training import SplitConfig
from ppprof.errors import ConfigError, PpprofError, Problem
from ppprof.train.corpus import NUM_TOKENS, DataError, find_files


def main(argv: Sequence[str] | None = None) -> int:
    """Train with a config, and return an exit code.

    Args:
        argv: the command line without the program's name; None for that of the process.

    Returns:
        0 if the training has finished; 2 if the config is invalid, or if a machine of the job lacks
        something, such as the device, the text or a writable output directory; 3 if the checkpoint
        to resume from is unusable.

    Raises:
        SystemExit: the command line cannot be parsed (code 2).
    """
    parser = argparse.ArgumentParser(description="Pretrain a GPT with a YAML config.")
    parser.add_argument("-c", "--config", required=True, metavar="CFG")
    parser.add_argument("-o", "--override", action="append", default=[], metavar="K=V")
    args = parser.parse_args(argv)
    prints_errors = os.environ.get("PADDLE_LOCAL_RANK", "0") == "0"
    try:
        config = load_config(
            args.config, args.override, int(os.environ.get("PADDLE_TRAINERS_NUM", "1"))
        )
        problems = preflight(config)
        if problems:
            raise ConfigError(problems)
    except PpprofError as error:
        if prints_errors:
            print(error, file=sys.stderr, flush=True)
            if line := _launch_line(args.config, args.override):
                print(line, file=sys.stderr, flush=True)
        failed_anywhere(True)
        return error.exit_code
    if failed_anywhere(False):
        if prints_errors:
            print("the checks of another node failed; see its log", file=sys.stderr)
        return ConfigError.exit_code
    if os.environ.get("PADDLE_TRAINER_ID", "0") == "0":
        for warning in (*config.warnings, *notes(config)):
            print(warning, file=sys.stderr)

    from ppprof.train.trainer import train

    try:
        train(config)
    except PpprofError as error:
        print(error, file=sys.stderr)  # on every rank: it may be the only one that fails
        return error.exit_code
    return 0


def _launch_line(path: str, overrides: Sequence[str]) -> str:
    """Return the command line that starts as many processes as the config needs.

    "" if the launcher started this process, or if the config needs one process, or has problems.
    """
    if "PADDLE_TRAINER_ID" in os.environ:
        return ""
    try:
        num = load_config(path, overrides).topology.world_size
    except PpprofError:
        return ""
    if num == 1:
        return ""
    words = ["python", "-m", "paddle.distributed.launch", "--nproc_per_node", str(num)]
    words += [sys.argv[0], "-c", path, *(word for text in overrides for word in ("-o", text))]
    return f"start it with the launcher: {shlex.join(words)}"


def notes(config: Config) -> list[str]:
    """Return warnings about settings of the config that have no effect in this harness."""
    warnings = []
    sharding = config.Distributed.sharding
    if sharding.sharding_offload:
        message = "has no effect: tools/train.py keeps optimizer state on the training device"
        warnings.append(str(config.problem("Distributed.sharding.sharding_offload", message)))
    for name in ("reduce_overlap", "broadcast_overlap"):
        if config.Global.device == "cpu" and getattr(sharding, name):
            key = f"Distributed.sharding.{name}"
            warnings.append(str(config.problem(key, "has no effect on a CPU")))
    for purpose in config.Engine.purposes:
        key = f"Data.{purpose}.dataset"
        data: Any = (config.resolved.get("Data") or {}).get(purpose) or {}
        folder = (data.get("dataset") or {}).get("input_dir")
        if folder and getattr(config.Data, purpose).dataset.input is None:
            message = (
                f"{folder}: FleetX's token files are not supported; training on the source of the "
                f"Python standard library. To use your text, set {key}.input to a file, a "
                "directory or a glob"
            )
            warnings.append(str(config.problem(f"{key}.input_dir", message)))
    return warnings


def preflight(config: Config) -> list[Problem]:
    """Return every problem that would stop a training with this config on this machine.

    Paddle is not imported, and no process is started. An empty list means that no problem is known.
    """
    problems = []
    if config.topology.degree("sep") > 1:
        message = (
            f"{config.topology.degree('sep')}: tools/train.py does not support sep; expected 1"
        )
        problems.append(config.problem("Distributed.sep_degree", message))
    optimizer = config.Optimizer
    for key, name, supported in (
        ("Model.module", config.Model.module, ("GPTModule",)),
        ("Optimizer.name", optimizer.name, ("AdamW", "FusedAdamW")),
        ("Optimizer.lr.name", optimizer.lr.name, ("CosineAnnealingWithWarmupDecay",)),
        (
            "Optimizer.grad_clip.name",
            optimizer.grad_clip and optimizer.grad_clip.name,
            ("ClipGradByGlobalNorm", None),
        ),
    ):
        if name not in supported:
            message = f"{name}: expected {' or '.join(filter(None, supported))}"
            problems.append(config.problem(key, message))
    save_load = config.Engine.save_load
    outputs = []
    if config.Profiler.enable:
        outputs.append(("Profiler.profiler_log", config.Profiler.profiler_log))
    if (save_load.save_steps or -1) > 0:
        outputs.append(("Engine.save_load.output_dir", save_load.output_dir))
    for key, folder in outputs:
        unwritable = rundir.check_writable(folder)
        if unwritable:
            problems.append(config.problem(key, f"{unwritable.where}: {unwritable.message}"))
    if save_load.ckpt_dir and not Path(save_load.ckpt_dir).is_dir():
        message = (
            f"{save_load.ckpt_dir}: no such directory; expected a checkpoint such as "
            f"{Path(save_load.output_dir, 'step_00001000')}"
        )
        problems.append(config.problem("Engine.save_load.ckpt_dir", message))
    if config.Model.vocab_size < NUM_TOKENS:
        message = f"{config.Model.vocab_size}: expected at least {NUM_TOKENS}, one per byte value"
        problems.append(config.problem("Model.vocab_size", message))
    for purpose in config.Engine.purposes:
        problems += _data_problems(config, f"Data.{purpose}.dataset", getattr(config.Data, purpose))
    return problems


def _data_problems(config: Config, key: str, data: SplitConfig) -> list[Problem]:
    dataset, problems = data.dataset, []
    split = dataset.split
    if isinstance(split, str) or len(split) != 3 or min(split) < 0 or not sum(split):
        message = f"{split!r}: expected three shares (train, eval, test), at least 0 and not all 0"
        problems.append(config.problem(f"{key}.split", message))
    limit = config.Model.max_position_embeddings
    if dataset.max_seq_len > limit:
        message = f"{dataset.max_seq_len}: more than Model.max_position_embeddings {limit}"
        problems.append(config.problem(f"{key}.max_seq_len", message))
    try:
        find_files(dataset.input)
    except DataError as error:
        problems.append(config.problem(f"{key}.input", str(error)))
    return problems


_KEY = "ppprof/checks"
_LEAVE_SECONDS = 10.0
"""How long rank 0, which hosts the store, waits for other ranks to read the result."""


def failed_anywhere(failed: bool) -> bool:
    """Return whether any rank of the job has failed its start-up checks. All ranks must call this.

    When a rank fails, its launcher ends the other ranks of the same node only. Without this function, the
    ranks of other nodes would wait in ``fleet.init`` for minutes, until the store's timeout.

    On a single node, return ``failed`` at once, without importing Paddle: other ranks do not count,
    since the launcher ends them. On several nodes, wait for all ranks. If any rank has failed, this
    process ignores SIGTERM from then on, and rank 0 waits up to 10 s until all ranks have the result.

    Args:
        failed: whether this rank has failed its checks.

    Raises:
        RuntimeError: a rank has not called this function before the store's timeout.
    """
    if int(os.environ.get("PADDLE_NNODES", "1")) == 1:
        return failed
    from paddle.base import core

    rank, world_size = (int(os.environ[f"PADDLE_TRAINER{name}"]) for name in ("_ID", "S_NUM"))
    store = core.create_or_get_global_tcp_store()
    store.add(f"{_KEY}/failures", int(failed))
    if store.add(f"{_KEY}/asked", 1) == world_size:
        store.set(f"{_KEY}/answer", str(store.add(f"{_KEY}/failures", 0)))
    anywhere = int(store.get(f"{_KEY}/answer")) > 0
    if anywhere:
        # When the first rank exits, its launcher sends SIGTERM to the other ranks of the node. They
        # ignore it to exit with their own codes. Rank 0 must keep the store open for other nodes.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        num_readers = store.add(f"{_KEY}/read", 1)
        deadline = time.monotonic() + _LEAVE_SECONDS
        while rank == 0 and num_readers < world_size and time.monotonic() < deadline:
            time.sleep(0.05)
            num_readers = store.add(f"{_KEY}/read", 0)
    return anywhere
