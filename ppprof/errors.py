"""What can go wrong for a user, and the exit code that goes with it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


class PpprofError(Exception):
    """Base of everything ppprof raises at a user; ``exit_code`` is what the CLI returns."""

    exit_code = 2


class UsageError(PpprofError):
    """The command was asked for in a way it cannot serve."""


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong, and where.

    >>> print(Problem("cfg.yaml:37", "Profiler.schedular", 'unknown key; did you mean "scheduler"?'))
    cfg.yaml:37: Profiler.schedular: unknown key; did you mean "scheduler"?
    """

    where: str
    """File and line (``cfg.yaml:37``) or the command-line flag (``-o``)."""
    key: str
    """Dotted key, or empty where the problem has none (a syntax error)."""
    message: str
    """What it is with its value, what was expected, what to do."""

    def __str__(self) -> str:
        return ": ".join(part for part in (self.where, self.key, self.message) if part)


class ConfigError(PpprofError):
    """A config that cannot be used; holds every problem at once, in file order."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class InputError(PpprofError):
    """No usable input: nothing to read, or nothing that could be read."""

    exit_code = 3


class TraceError(InputError):
    """A trace file that cannot be read; the message holds path, byte offset and reason."""
