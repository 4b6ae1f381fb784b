"""The errors that users see, with their exit codes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

NO_PADDLE = (
    "PaddlePaddle is not installed in this environment: pip install paddlepaddle, or "
    "paddlepaddle-gpu for NVIDIA's devices (https://www.paddlepaddle.org.cn/install)"
)


class PpprofError(Exception):
    """Base class of all errors for users."""

    exit_code = 2
    """The CLI ends with this exit code; subclasses may override it."""


class UsageError(PpprofError):
    """Invalid arguments of a command or function. Exit code 2."""


class Problem(NamedTuple):
    """One problem, and the place that causes it.

    >>> print(Problem("cfg.yaml:37", "Profiler.schedular", 'unknown key; did you mean "scheduler"?'))
    cfg.yaml:37: Profiler.schedular: unknown key; did you mean "scheduler"?
    """

    where: str
    """File and line (``cfg.yaml:37``) or the command-line flag (``-o KEY=VALUE``)."""
    key: str
    """Dotted key; empty for a problem that belongs to no key, such as a syntax error."""
    message: str
    """The problem with the value, the expected values, and what to do."""

    def __str__(self) -> str:
        return ": ".join(part for part in (self.where, self.key, self.message) if part)


class ConfigError(PpprofError):
    """An invalid config. ``problems`` holds every problem, the message has one line for each.

    `ppprof.config.load_config` sorts the problems by file and line. Exit code 2.
    """

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class InputError(PpprofError):
    """Missing or unreadable input. Exit code 3."""

    exit_code = 3


class TraceError(InputError):
    """An unreadable trace file; the message has path, byte offset and reason. Exit code 3."""
