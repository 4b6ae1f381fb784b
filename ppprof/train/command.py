"""``tools/train.py``: check everything that can be checked, then train.

Checks come before Paddle is imported: a typing error in a config costs a second, not a cluster.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from ppprof import rundir
from ppprof.config import Config, load_config
from ppprof.errors import ConfigError, PpprofError, Problem
from ppprof.train.corpus import NUM_TOKENS, find_files
from ppprof.train.errors import DataError


def main(argv: Sequence[str] | None = None) -> int:
    """Trains; returns 0, or 2 when the config or the machine does not allow it."""
    parser = argparse.ArgumentParser(description="Pretrain a GPT, as a YAML config says.")
    parser.add_argument("-c", "--config", required=True, metavar="CFG")
    parser.add_argument("-o", "--override", action="append", default=[], metavar="K=V")
    args = parser.parse_args(argv)
    speaks = os.environ.get("PADDLE_LOCAL_RANK", "0") == "0"
    try:
        config = load_config(
            args.config, args.override, int(os.environ.get("PADDLE_TRAINERS_NUM", "1"))
        )
        problems = preflight(config)
        if problems:
            raise ConfigError(problems)
    except PpprofError as error:
        if speaks:
            print(error, file=sys.stderr)
        return error.exit_code
    if os.environ.get("PADDLE_TRAINER_ID", "0") == "0":
        for warning in config.warnings:
            print(warning, file=sys.stderr)

    from ppprof.train.trainer import train

    train(config)
    return 0


def preflight(config: Config) -> list[Problem]:
    """What would stop this config on this machine, all at once; starts no processes."""
    problems = []
    degrees = {axis: config.topology.degree(axis) for axis in config.topology.order}
    others = {axis: degree for axis, degree in degrees.items() if axis != "dp" and degree > 1}
    if others:
        problems.append(
            Problem(
                "Distributed",
                "",
                f"{', '.join(f'{axis} {degree}' for axis, degree in others.items())}: this "
                "version trains data parallel only; ppprof config checks the other axes",
            )
        )
    if config.Profiler.enable:
        unwritable = rundir.check_writable(config.Profiler.profiler_log)
        if unwritable:
            problems.append(Problem("Profiler.profiler_log", unwritable.where, unwritable.message))
    save_load = config.Engine.save_load
    if (save_load.save_steps or -1) > 0:
        unwritable = rundir.check_writable(save_load.output_dir)
        if unwritable:
            where = "Engine.save_load.output_dir"
            problems.append(Problem(where, unwritable.where, unwritable.message))
    if config.Model.vocab_size < NUM_TOKENS:
        message = f"{config.Model.vocab_size}: bytes need {NUM_TOKENS} at least"
        problems.append(Problem("Model.vocab_size", "", message))
    return [*problems, *_data_problems(config)]


def _data_problems(config: Config) -> list[Problem]:
    problems = []
    for purpose in ("Train", "Eval"):
        dataset = getattr(config.Data, purpose).dataset
        where = f"Data.{purpose}.dataset"
        if isinstance(dataset.split, str) or len(dataset.split) != 3:
            message = f"{dataset.split!r}: expected three shares: train, eval, test"
            problems.append(Problem(where, "split", message))
        if dataset.max_seq_len > config.Model.max_position_embeddings:
            limit = config.Model.max_position_embeddings
            message = f"{dataset.max_seq_len}: more than Model.max_position_embeddings {limit}"
            problems.append(Problem(where, "max_seq_len", message))
        try:
            find_files(dataset.input)
        except DataError as error:
            problems.append(Problem(where, "input", str(error)))
    return problems
