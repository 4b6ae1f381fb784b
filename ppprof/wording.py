"""Numbers and losses in words, for messages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

_UNPRINTABLE = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f"  # a terminal obeys them
    "\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069]"  # they change the order of what is shown
)


def printable(text: str) -> str:
    r"""The text with what a terminal would obey written out; lines and tabs stay.

    Names in traces, of files and of hosts are anybody's.

    >>> printable("evil\x1b[2Jkernel\n")
    'evil\\x1b[2Jkernel\n'
    """
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def one_line(text: str) -> str:
    r"""`printable`, without lines and tabs: a cell of a table.

    >>> one_line("a\tb\nc")
    'a\\tb\\nc'
    """
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def listed(what: str, numbers: Iterable[int]) -> str:
    """``rank 0``, ``windows 0-3, 7`` or ``no step``.

    >>> listed("rank", [3, 0, 1, 7]), listed("step", [4]), listed("step", [])
    ('ranks 0-1, 3, 7', 'step 4', 'no step')
    """
    ranges: list[list[int]] = []
    for number in sorted(set(numbers)):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    if not ranges:
        return f"no {what}"
    plural = "" if len(ranges) == 1 and ranges[0][0] == ranges[0][1] else "s"
    listed = ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in ranges)
    return f"{what}{plural} {listed}"


def lost_text(path: object, lost: Mapping[str, int]) -> str:
    """What of a file could not be used, in words."""
    kinds = ", ".join(f"{count} {what}" for what, count in lost.items())
    return f"{path}: not all of it could be used: {kinds}"
