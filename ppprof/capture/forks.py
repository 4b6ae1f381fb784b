"""Whether this process is a fork of the one that a session began in."""

from __future__ import annotations

import os

count = 0
"""Forks between the process that imported this module and this one. To ask the system for the number
of this process in every step would take longer."""


def _after_fork_in_child() -> None:
    global count
    count += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
