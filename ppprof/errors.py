"""The errors that users see, with their exit codes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


class PpprofError(Exception):
    """Base class of all errors for users."""

    exit_code = 2
    """Exit code of the CLI."""


class UsageError(PpprofError):
    """Invalid arguments of a command or function."""


@dataclass(frozen=True)
class Problem:
    """One problem and its place.

    >>> print(Problem("cfg.yaml:37", "Profiler.schedular", 'unknown key; did you mean "scheduler"?'))
    cfg.yaml:37: Profiler.schedular: unknown key; did you mean "scheduler"?
    """

    where: str
    """File and line (``cfg.yaml:37``) or the command-line flag (``-o``)."""
    key: str
    """Dotted key; empty for a problem without one, such as a syntax error."""
    message: str
    """The problem with the value, the expected values, and what to do."""

    def __str__(self) -> str:
        return ": ".join(part for part in (self.where, self.key, self.message) if part)


class ConfigError(PpprofError):
    """An invalid config; holds every problem, in file order."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class InputError(PpprofError):
    """Missing or unreadable input."""

    exit_code = 3


class TraceError(InputError):
    """An unreadable trace file; the message has path, byte offset and reason."""
