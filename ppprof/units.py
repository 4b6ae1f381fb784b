"""Format numbers and names as text: times, sizes, ratios, ranges; escape control characters."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from itertools import takewhile

from ppprof.messages import Message

MEGABYTE = 1_000_000
"""Bytes of one MB, in settings whose name ends in ``_mb``."""

_UNPRINTABLE = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f"  # terminals execute them
    "\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069"  # they reorder the text around them
    "\\xad\\u115f\\u1160\\u180e\\u200b-\\u200d\\u2060-\\u2064\\u206a-\\u206f\\u3164"  # they show nothing
    "\\ufeff\\uffa0\\ufff9-\\ufffb\\U000e0000-\\U000e007f]"
)
_PLURAL = re.compile(r"s(?=$| (?:from|not|of|that|without)\b)")
_TIMES = ((1e9, "s"), (1e6, "ms"), (1e3, "us"), (1.0, "ns"))
_BYTES = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def format_time(time_ns: float) -> str:
    """Format a time in ns in a suitable unit from ns to s, with three significant digits.

    >>> format_time(1_234_567), format_time(40_000), format_time(0), format_time(-2.5e9), format_time(999_900)
    ('1.23 ms', '40 us', '0 ns', '-2.5 s', '1 ms')
    """
    return _in_unit(time_ns, _TIMES, "ns")


def format_bytes(num_bytes: float) -> str:
    """Format a size in bytes in a suitable unit from B to TiB, with three significant digits.

    >>> format_bytes(80 << 30), format_bytes(1536), format_bytes(12), format_bytes(1000)
    ('80 GiB', '1.5 KiB', '12 B', '1,000 B')
    """
    return _in_unit(num_bytes, _BYTES, "B")


def format_ratio(ratio: float) -> str:
    """Format a ratio (1 is 100%) as percent, with one decimal.

    >>> format_ratio(0.4812), format_ratio(0.05)
    ('48.1%', '5.0%')
    """
    return f"{ratio:.1%}"


def format_value(name: str, value: str | float | None) -> str:
    """Format a value in the unit at the end of its name: ``_ns``, ``_bytes`` or ``_ratio``.

    None becomes "-". Text and booleans stay as they are, other numbers get six significant digits (means
    of counts, ``calls`` and ``num_...``, three), and no decimals from 100 on.

    >>> format_value("step_ns", 2e6), format_value("peak_bytes", 2048), format_value("idle_ratio", 0.5)
    ('2 ms', '2 KiB', '50.0%')
    >>> format_value("num_workers", 4), format_value("rank", None), format_value("calls", 5 / 7)
    ('4', '-', '0.714')
    """
    if value is None:
        return "-"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if name.endswith("_ns"):
            return format_time(value)
        if name.endswith("_bytes"):
            return format_bytes(value)
        if name.endswith("_ratio"):
            return format_ratio(value)
        digits = 3 if name == "calls" or name.startswith("num_") else 6
        return f"{value:.0f}" if abs(value) >= 100 else f"{value:.{digits}g}"
    return str(value)


def without_cpp_stack(message: str) -> str:
    r"""Return an error's message without the C++ stack that Paddle puts first with FLAGS_call_stack_level=2.

    >>> without_cpp_stack("C++ Traceback: 0 Alloc<float16>\nError Message Summary: Fail to alloc memory")
    ' Fail to alloc memory'
    """
    return message.rpartition("Error Message Summary:")[2]


def escape_control_chars(text: str) -> str:
    r"""Escape characters that a terminal would execute, that reorder the text or that show nothing.

    Newlines and tabs stay. Names in traces and names of files and hosts are untrusted: with such
    characters, one name could look like another.

    >>> escape_control_chars("evil\x1b[2Jkernel\n"), escape_control_chars("mat\u200bmul")
    ('evil\\x1b[2Jkernel\n', 'mat\\u200bmul')
    """
    return _UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def escape_cell(text: str) -> str:
    r"""Escape text for a cell of a table: as `escape_control_chars`, and newlines and tabs too.

    >>> escape_cell("a\tb\nc")
    'a\\tb\\nc'
    """
    return escape_control_chars(text).replace("\n", "\\n").replace("\t", "\\t")


MOST_CHARACTERS = 80
"""Longer names are shortened: kernels of C++ templates have up to 1,000 characters."""


def short_name(name: str, limit: int = MOST_CHARACTERS) -> str:
    """Return a name of at most ``limit`` characters, without the parts of C++ that say little.

    A name that fits is unchanged. A line of source loses its end, and as many folders as hide the line and
    its function. Any other longer name loses its mangling,
    return type, parameters, and the namespaces of template arguments; then the last of these
    arguments, as far as need be, and at last its middle.

    >>> short_name("void at::native::elementwise_kernel<4, at::native::Fill<float>>(int)", 60)
    'at::native::elementwise_kernel<4, Fill<float>>'
    >>> short_name("void at::native::elementwise_kernel<4, at::native::Fill<float>>(int)", 43)
    'at::native::elementwise_kernel<4, Fill<flo…'
    >>> short_name("_ZN2at6native13reduce_kernelILi512ELi1ENS0_8ReduceOpIfNS0_7MeanOpsEEEEvT1_", 50)
    'at::native::reduce_kernel<ReduceOp, MeanOps>'
    >>> short_name("train.py:7, log(): file.write(json.dumps(weights))", 30)
    'train.py:7, log(): file.write…'
    >>> short_name("Net (/home/user/project/models/encoder.py:73, forward(): self.dense(x))", 40)
    'Net (…/models/encoder.py:73, forward():…'
    >>> short_name("a" * 20 + "b" * 20, 11)
    'aaaaa…bbbbb'
    """
    if len(name) <= limit:
        return name
    place = _SOURCE_LINE.search(name)
    if place:
        over = place.end() - limit + 2
        folder = place["folders"].find("/", max(over, 0))
        if over > 0 and folder >= 0:
            begin, end = place.span("folders")
            name = f"{name[:begin]}…{place['folders'][folder:]}{name[end:]}"
        return name if len(name) <= limit else f"{name[: limit - 1]}…"
    plain, arguments = _plain(name)
    text = f"{plain}{arguments}"
    if len(text) <= limit:
        return text
    has_room = limit - len(plain) > limit // 6
    return f"{text[: limit - 1]}…" if has_room else _without_middle(plain, limit)


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Return each name with its `short_name`, as `distinct` makes them differ."""
    return distinct(names, MOST_CHARACTERS, short_name)


def distinct(names: Iterable[str], limit: int, shorten: Callable[[str], str]) -> dict[str, str]:
    """Return each name, shortened; names that would be equal keep the place where they differ.

    >>> long = "void k<" + 99 * "x" + ", {}<float> >(int)"
    >>> names = (long.format("Add"), long.format("Mul"), "relu")
    >>> list(distinct(names, 30, lambda name: name[:6]).values())
    ['k<xxxxxxxx…xxx, Add<float> >', 'k<xxxxxxxx…xxx, Mul<float> >', 'relu']
    """
    short = {name: shorten(name) for name in names}
    groups: dict[str, list[str]] = {}
    for name, text in short.items():
        groups.setdefault(text, []).append(name)
    for same in groups.values():
        if len(same) < 2:
            continue
        texts = ["".join(_plain(name)) for name in same]
        texts = texts if len({*texts}) == len(same) else same
        # The first and the last in order differ first.
        pairs = zip(min(texts), max(texts))
        begin = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)) - limit // 6
        short.update((name, _from(text, begin, limit)) for name, text in zip(same, texts))
    return short


def _from(name: str, begin: int, limit: int) -> str:
    """Return the head of a name, and what it has from ``begin`` on, in ``limit`` characters."""
    head = limit // 3
    text = name if begin <= head + 1 else f"{name[:head]}…{name[begin:]}"
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _without_middle(name: str, limit: int) -> str:
    half = (limit - 1) // 2
    return name if len(name) <= limit else f"{name[: limit - 1 - half]}…{name[-half:]}"


_SOURCE_LINE = re.compile(
    r"(?<![^\s(])(?P<folders>(?:[^\s(/]*/)*)[^\s(/]*\.py:\d+(?:, [\w.<>]+\(\))?"
)
_ANONYMOUS = re.compile(r"\(anonymous namespace\)::|::operator\(\)")
_RETURN_TYPE = re.compile(r"\A(?:void|std::enable_if\S*) ")
_PARAMETERS = re.compile(r"(?<=[\w>})])\([^()]*\)(?: const)?(?: \[clone[^]]*\])?| \(\*\)")
_NAMESPACES = re.compile(r"(?<!\w)(?:\w+::)+(?=\w)")
_MANGLED = re.compile(r"\A_ZN?K?((?:\d+\w+)+)")
_PART = re.compile(r"(?P<length>[1-9]\d{0,3})|L\w\d+E|[ST]\d*_|.")
"""A part of mangled template arguments: the length of a name, a literal, a substitution, a letter."""


def _plain(name: str) -> tuple[str, str]:
    """Return a C++ name without return type and parameters, and its template arguments."""
    text, num_cut = _RETURN_TYPE.sub("", _ANONYMOUS.sub("", _demangled(name))), 1
    while num_cut:
        text, num_cut = _PARAMETERS.subn("", text)
    plain, arguments = _templates(text)
    return plain or name, _NAMESPACES.sub("", arguments)


def _demangled(name: str) -> str:
    """Return the qualified name in a mangled C++ name, and names in its arguments; others unchanged."""
    if not (mangled := _MANGLED.match(name)):
        return name
    rest = mangled[1]
    own: list[str] = []
    arguments: list[str] = []
    parts = own
    while rest:
        part = _PART.match(rest)
        assert part
        end = part.end()
        if part["length"]:
            end += int(part["length"])
            parts.append(rest[part.end() : end])
        elif rest[0] != "E":
            parts = arguments
        rest = rest[end:]
    inner = dict.fromkeys(part for part in arguments if "_GLOBAL__N" not in part)
    head = "::".join(part for part in own if "_GLOBAL__N" not in part) or name
    return f"{head}<{', '.join(inner)}>" if inner else head


def _templates(name: str) -> tuple[str, str]:
    """Return a name without its last outer angle brackets, and these; ``(name, "")`` if they do not match."""
    depth, begin, end = 0, 0, 0
    for place, (character, before) in enumerate(zip(name, " " + name)):
        if character == ">" and before != "-":
            depth -= 1
            end = place + 1
        elif character == "<":
            begin = begin if depth else place
            depth += 1
        if depth < 0:
            return name, ""
    return (name[:begin] + name[end:], name[begin:end]) if depth == 0 else (name, "")


_MOST_SOURCE = 60
"""Characters of a line's source in its name."""


def format_line(place: str, function: str, source: str) -> str:
    """Return the name of a line of code.

    Args:
        place: its file and number.
        function: the function that it is in, with its classes; ``<module>`` for the file's own code.
        source: the text of the line; "" if it is unknown.

    >>> format_line("train.py:7", "Trainer.log", "json.dumps(record)")
    'train.py:7, log(): json.dumps(record)'
    >>> format_line("train.py:9", "<module>", "")
    'train.py:9'
    """
    if not function.startswith("<"):
        place += f", {function.rpartition('.')[2]}()"
    if not source:
        return place
    shown = source if len(source) <= _MOST_SOURCE else f"{source[: _MOST_SOURCE - 3]}..."
    return f"{place}: {shown}"


def format_more(num: int, noun: str) -> str:
    """Return how many rows are not shown; ``noun`` is a plural that ends in s.

    >>> format_more(1, "kernels"), format_more(1200, "rows")
    ('1 more kernel', '1,200 more rows')
    """
    return f"{num:,} more {noun.removesuffix('s') if num == 1 else noun}"


def format_ranges(what: str, numbers: Iterable[int]) -> str:
    """Format numbers as ``rank 0``, ``windows 0-3, 7`` or ``no step``.

    Args:
        what: a singular noun, such as "rank"; its plural must add an s.
        numbers: in any order; duplicates count once.

    >>> format_ranges("rank", [3, 0, 1, 7]), format_ranges("step", [4]), format_ranges("step", [])
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
    parts = ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in ranges)
    return f"{what}{plural} {parts}"


TRUNCATED = "truncated end of file"
"""A kind for `format_skipped`: the file ends too early. A reason in parentheses may follow."""


def format_skipped(path: object, skipped: Mapping[str, int]) -> Message:
    """Return a message that names the skipped data of a file, with counts.

    Args:
        path: the file.
        skipped: the count of each kind of skipped data. A kind is a plural noun such as "events
            that are not valid JSON", or it starts with `TRUNCATED`. The count of a kind that
            starts with `TRUNCATED` is not shown.

    >>> format_skipped("cut.json", {TRUNCATED: 1, "events that are not valid JSON": 1})
    'cut.json: partly read: the file is truncated; skipped 1 event that is not valid JSON'
    >>> format_skipped("a.gz", {TRUNCATED: 1, f"{TRUNCATED} (damaged gzip)": 1})
    'a.gz: partly read: the file is truncated (damaged gzip)'
    """
    reasons = [kind.removeprefix(TRUNCATED) for kind in skipped if kind.startswith(TRUNCATED)]
    others = {kind: num for kind, num in skipped.items() if not kind.startswith(TRUNCATED)}
    if not reasons:
        return Message("skipped", path=path, what=format_counts(others))
    if not others:
        return Message("truncated", path=path, why=max(reasons))
    what = format_counts(others)
    return Message("truncated_and_skipped", path=path, why=max(reasons), what=what)


def format_unusable(path: object, skipped: Mapping[str, int]) -> str:
    """Return a message that says why a file gave no event.

    Args:
        path: the file.
        skipped: as in `format_skipped`; empty if the file holds no event.

    >>> format_unusable("bad.json", {"host events without time, process or thread": 5})
    'bad.json: no event of it can be used: skipped 5 host events without time, process or thread'
    >>> format_unusable("cut.json", {TRUNCATED: 1})
    'cut.json: no event of it can be used: the file is truncated'
    >>> format_unusable("empty.json", {})
    'empty.json: the file has no events'
    """
    if not skipped:
        return f"{path}: the file has no events"
    reasons = format_skipped(path, skipped).removeprefix(f"{path}: partly read: ")
    return f"{path}: no event of it can be used: {reasons}"


def format_omitted(path: object, omitted: Mapping[str, int]) -> str:
    """Return a message that names what a written file lacks because its format cannot hold it.

    Args:
        path: the file.
        omitted: the count of each kind of omitted data. A kind is a plural noun.

    >>> format_omitted("a.pb", {"event annotations": 1, "device events without a launch": 2})
    'a.pb: the format cannot hold 1 event annotation, 2 device events without a launch'
    """
    return f"{path}: the format cannot hold {format_counts(omitted)}"


def format_counts(counts: Mapping[str, int]) -> str:
    """Return text such as "2 events without time, 1 field of an unexpected type"."""
    return ", ".join(
        f"{num} {kind if num != 1 else _PLURAL.sub('', kind, 1).replace(' are ', ' is ', 1)}"
        for kind, num in counts.items()
    )


def _in_unit(value: float, units: tuple[tuple[float, str], ...], least: str) -> str:
    size, unit = next((each for each in units if abs(value) >= 0.9995 * each[0]), (1.0, least))
    number = value / size
    return f"{number:.3g} {unit}" if abs(number) < 999.5 else f"{number:,.0f} {unit}"
