r"""Operators of Paddle that a training writes out in several ones: a norm, a softmax, a GELU, attention, distances.

They are found by their names and sizes, in a row on one thread::

    x            mean  subtract  pow  mean  scale  sqrt  divide  multiply  add
    elements     N     N         N    N     1      1     N       N         N
    symbols      M     -         P    M            r     /       *         +      a layer_norm

Operators on fewer elements have no symbol, but for a few, such as the root of a norm. The operators above make 16 passes
over N elements, and layer_norm makes 3: it saves 13/16 of their time, with their gradients'. On a CPU, with gradients, for
float32 [8,128,512], layer_norm took 9 ms and the operators 41 (0.21), gelu 3.6 ms and its operators 31 (0.11).

Some operators are slow on a CPU by themselves. Measured with Paddle 3.3, float32, one thread, with gradients::

    shape           slow                     in place of it
    4096 elements   pow: 6 to 40 times as long as square, and from there on
    [1024,512]      log_softmax 50 ms        cross_entropy 1.4 ms
    [512,8000]      log_softmax 5.9 s        cross_entropy 17 ms; softmax and its log 52 ms
    [1024,512]      p_norm of rows 35 ms     root of the sum of squares 2 ms
    [256,256]       max of rows 23 ms        topk 0.7 ms
    [1024,512]      max of rows 370 ms       topk 5 ms

What cross_entropy takes of the time of its spellings, measured likewise for [512,8000] and [1024,512]::

    log_softmax, the label's entry                        0.00    0.03    so log_softmax is slow there
    softmax, log, product with one_hot, sum               0.22    0.27
    softmax, log, the label's entry                       0.31    0.31
    exp, sum, log, subtract, the label's entry            0.34    0.36
    softmax, the label's entry, its log                   0.51    0.59
    softmax, product with one_hot, sum, log               0.38    0.49

Distances of all pairs of rows make a tensor of their differences, ``(a[:, None] - b[None]).square().sum(-1)``; by a product of
matrices, ``|a|^2 + |b|^2 - 2 a b'``, they took, with and without gradients, of rows of width::

    2       0.23 to 0.26        16      0.03
    3       0.17 to 0.18        64      0.01
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from ppprof.analysis.efficiency.operator_work import num_elements
from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.profile.python_calls import python_calls
from ppprof.trace.labels import map_texts
from ppprof.trace.operator_inputs import Shape, attributes_of, shapes_as_shown, shapes_in

WRITTEN_OUT = {
    "row": pl.Int64(),
    "step": pl.Int64(),
    "kind": pl.String(),
    "name": pl.String(),
    "time_ns": pl.Int64(),
    "saved_ns": pl.Int64(),
}
"""Columns of `WrittenOut.table`."""

_LEAST_ELEMENTS = 4096
"""On fewer elements, an operator takes as long as its call."""

_SYMBOLS = {
    **{"mean": "M", "var": "V", "std": "V", "sum": "U"},
    **dict.fromkeys(("max", "amax"), "X"),
    **dict.fromkeys(("pow", "square"), "P"),
    **dict.fromkeys(("sqrt", "rsqrt"), "r"),
    **dict.fromkeys(("scale", "div_scale"), "K"),
    **dict.fromkeys(("take_along_axis", "gather_nd", "index_sample", "nll_loss"), "G"),
    **{"exp": "E", "tanh": "T", "erf": "F", "one_hot": "o", "log": "l"},
    **{"multiply": "*", "divide": "/", "subtract": "-", "add": "+"},
    **{"softmax": "S", "log_softmax": "L", "clip": "C"},
    **dict.fromkeys(("matmul", "bmm"), "m"),
}
_ALWAYS = "rol"
"""Symbols that count on fewer elements, too."""
_MOVES = frozenset(
    (
        *("cast", "numel", "full", "full_like", "assign", "unsqueeze", "squeeze", "reshape"),
        *("transpose", "expand", "concat", "split", "contiguous", "maximum", "less_equal", "any"),
        *("slice", "strided_slice"),
    )
)
"""Operators between the others that are no part of a kind."""
_REDUCTIONS = "MVUXG"
"""Symbols of operators with few results."""


class _Kind(NamedTuple):
    name: str
    pattern: re.Pattern[str]
    passes: int
    """Over the elements, of the one operator."""
    kept: tuple[float, float] | None = None
    """Share of their time that the one operator takes on a host, as measured, and on a device, by passes with gradients; None if
    the passes of the operators decide."""


_CLASSES_KEPT = 0.3
"""What cross_entropy takes of log_softmax and the choice of a class on a CPU, with gradients: 0.31 for [256,100], less for more
classes."""
_NORM = (
    r"M{1,2}-[P*][MU]r?-?\*?r?[*/]\*?\+?|(?:M[P*]M|[P*]MM)r?-r?[*/]\*?\+?"
    r"|(?:MV-|VM-|M-V)r?\*?r?[*/]\*?\+?"
)
_PROBABILITIES = ("S", "X?-?EU/")
_LOGS_BY_HAND = (*(f"{each}[KC]?l" for each in _PROBABILITIES), "X?-?EUl-")
"""Logarithms of probabilities; what is ahead of one adds a small number, or clips."""


def _entry_of(*values: str, then: str = "") -> re.Pattern[str]:
    """Return the pattern of the label's entry of each row, chosen by its place or by the sum of a product with a ``one_hot``.

    The ``one_hot`` may be made anywhere ahead of the product. Scaled values may be negative ones::

        take_along_axis(log(softmax(x)))        S l G
        (one_hot * log(softmax(x))).sum()       S l o * U,  S o l * U,  o S l * U
    """
    chosen = (f"{each}K?G{then}" for each in values)
    products = (
        r"(?=[^*]*o[^*]*\*)o?" + re.sub(r"(\[.*?\]|.)(\??)", r"\1\2o?", each) + rf"K?o?\*K?U{then}"
        for each in values
    )
    return re.compile("|".join((*chosen, *products)))


_KINDS = (
    _Kind("layer_norm", re.compile(_NORM), 3),
    _Kind("rms_norm", re.compile(r"[P*]Mr[*/]\*?"), 3),
    _Kind("cross_entropy", _entry_of("L"), 2, (_CLASSES_KEPT, 0.6)),
    _Kind("cross_entropy", _entry_of(*_LOGS_BY_HAND), 2, (0.35, 0.3)),
    _Kind("cross_entropy", _entry_of(*_PROBABILITIES, then="l"), 2, (0.6, 0.6)),
    _Kind("softmax", re.compile(r"X?-?EU/"), 2),
    _Kind("gelu", re.compile(r"K?(?:P|\*\*)K?\+K?TK\*K?|K{0,2}FK\*K?"), 2),
)
SLOW_ON_HOST = frozenset(("pow", "log_softmax", "norm", "max"))
"""Kinds that are one operator, which is slow on a CPU."""
_ON_DEVICE_ONLY = frozenset(("rms_norm",))
"""Kinds for which Paddle has no operator on a CPU."""
_SLOW = {
    **{"pow": ("pow", 0.2), "log_softmax": ("log_softmax", _CLASSES_KEPT), "p_norm": ("norm", 0.2)},
    **dict.fromkeys(("max", "amax", "min", "amin"), ("max", 0.2)),
}
"""Operators that are slow on a CPU: kind, and what others in place of them take at most."""
_OF_GRADIENTS = "max"
"""The kind of which the gradient alone is slow."""
_READS = re.compile("[MUEX*]")
"""Operators that read all of the logarithms of probabilities, not one of each row: of label smoothing, of an entropy."""
_LEAST_ROWS = 25
"""From more rows on, ``paddle.cdist`` computes a product."""
_ATTENTION = re.compile("m[^mS]{0,8}S[^mS]{0,6}m")


class _Call(NamedTuple):
    row: int
    name: str
    symbol: str
    size: int
    num_large: int
    """How many of its tensors have so many elements."""
    attributes: str | None = None
    """Of a mean, a variance, a power or a scale."""
    rank: int = 0
    """The number of axes of its first tensor."""
    width: int = 0
    """The last dim of its first tensor."""


class _Match(NamedTuple):
    kind: str
    rows: Sequence[int]
    kept_ratio: float
    shown: int
    """The row of an operator on all of the elements."""


class WrittenOut(NamedTuple):
    """What a training writes out in several operators."""

    table: pl.DataFrame
    """One row per place and step: row (of ``tree.hosts``, of the first operator); step; kind; name (``layer_norm
    [8,128,512]``); time_ns of the operators and their gradients, device time if the trace has device events; and saved_ns."""
    rows: Sequence[int]
    """Rows of all of the operators."""


def written_out(profile: Profile, others: Iterable[int] = ()) -> WrittenOut:
    """Return the operators of Paddle that a window's training writes out in several.

    None of torch: its operators have other names. Attention and RMS norms count with device events only, since Paddle has
    operators for them there; attention if it computes in 16 bits; slow operators of a CPU without device events only.

    Args:
        profile: the window.
        others: rows of operators that are a part of none.
    """
    nothing = WrittenOut(pl.DataFrame(schema=WRITTEN_OUT), ())
    calls = python_calls(profile).filter(~pl.col("in_optimization")).drop_nulls("step")
    if calls["shapes"].count() == 0:
        return nothing
    calls = calls.with_columns(pl.col("shapes", "dtypes", "attributes").cast(pl.String))
    on_device, taken = not profile.tree.devices.is_empty(), set(others)
    matches = [
        match
        for (_, step), own in calls.group_by("thread", "step", maintain_order=True)
        for match in _matches(list(_calls(own)), own, on_device=on_device)
        if taken.isdisjoint(match.rows)
    ]
    if not matches:
        return nothing
    return _with_times(profile, calls, matches)


def _calls(own: pl.DataFrame) -> Iterator[_Call]:
    """Yield the operators of a thread in a step."""
    shapes = {text: _shapes(text) for text in own["shapes"].unique()}
    for row, called, text, attributes in own.select(
        "row", "name", "shapes", "attributes"
    ).iter_rows():
        tensors, name = shapes[text], called.rstrip("_")  # add_(x, y) is x.add_(y)
        sizes = list(map(math.prod, tensors))
        size = max(sizes, default=0)
        symbol = _SYMBOLS.get(name, "" if name in _MOVES else "z")
        num_large = sum(2 * each >= size for each in sizes)
        known = attributes if symbol in ("M", "V", "P", "K") else None
        first = tensors[0] if tensors else ()
        width = first[-1] if first else 0
        yield _Call(row, name, symbol, size, num_large, known, len(first), width)


def _matches(calls: Sequence[_Call], own: pl.DataFrame, *, on_device: bool) -> Iterator[_Match]:
    """Yield what the operators of a thread in a step write out."""
    taken: set[int] = set()
    for match in _distances(own, on_device=on_device):
        taken.update(match.rows)
        yield match
    if on_device:
        texts = own.select("row", "dtypes", "shapes").rows()
        for match in _attentions(calls, {row: each for row, *each in texts}):
            if taken.isdisjoint(match.rows):
                taken.update(match.rows)
                yield match
    begin = 0
    for end in range(len(calls) + 1):
        if end == len(calls) or _breaks(calls[end]):
            for match in _of_run(calls[begin:end], on_device=on_device):
                if taken.isdisjoint(match.rows):
                    taken.update(match.rows)
                    yield match
            begin = end + 1
    for call in () if on_device else calls:
        if _is_slow(call) and call.row not in taken:
            kind, kept_ratio = _SLOW[call.name]
            yield _Match(kind, (call.row,), kept_ratio, call.row)


def _is_slow(call: _Call) -> bool:
    """Return whether an operator is one of `_SLOW`; of powers, those with another operator: a square and a cube."""
    if call.name not in _SLOW or call.size < _LEAST_ELEMENTS:
        return False
    return call.name != "pow" or attributes_of(call.attributes).get("X1") in (2, 3)


def _breaks(call: _Call) -> bool:
    """Return whether an operator is a part of nothing; what it does on few elements may be beside the others."""
    return call.symbol in ("z", "m") and call.size >= _LEAST_ELEMENTS


def _of_run(run: Sequence[_Call], *, on_device: bool) -> Iterator[_Match]:
    """Yield what operators in a row write out, with no other ones between them, by each of their sizes."""
    kinds = [each for each in _KINDS if on_device or each.name not in _ON_DEVICE_ONLY]
    for size in sorted({each.size for each in run if each.size >= _LEAST_ELEMENTS}, reverse=True):
        symbols = [
            (number, each.symbol)
            for number, each in enumerate(run)
            if each.symbol and (each.size == size or (each.symbol in _ALWAYS and each.size <= size))
        ]
        text = "".join(symbol for _, symbol in symbols)
        for kind in kinds:
            for place in kind.pattern.finditer(text):
                first, last = symbols[place.start()][0], symbols[place.end() - 1][0]
                parts = run[first : last + 1]
                name = _name(kind, parts, size, text[place.end() :])
                if name is None or any(each.size > size for each in parts):
                    continue
                yield _Match(
                    name,
                    [each.row for each in parts],
                    _kept(kind, parts, size, on_device=on_device),
                    next(each.row for each in parts if each.size == size),
                )


def _name(kind: _Kind, parts: Sequence[_Call], size: int, rest: str) -> str | None:
    """Return the name of a kind, of norms by their axes; None if no operator computes the norm or the loss.

    ``rest`` has the symbols of the operators that follow, which may read the probabilities, too.

    ::

        [8,128,512]                 mean(-1), mean([1, 2])      layer_norm, rms_norm
        [16,32,9,9] and [16,32]     mean([0, 2, 3]), mean(0)    batch_norm
        [16,32,9,9]                 mean(1), mean()             none
    """
    if kind.name == "cross_entropy":
        last = parts[-1]  # the log of what was chosen of each row, or of something else
        shown = next(each for each in parts if each.size == size)
        is_other = last.symbol == "l" and last.size * shown.width != size
        is_other = is_other or not _is_log_of_chosen(parts, size)
        return None if is_other or _READS.search(rest) else kind.name
    if kind.name not in ("layer_norm", "rms_norm"):
        return kind.name
    has_root = any(each.symbol == "r" or each.name == "std" for each in parts)
    # What is divided or scaled is as large as what the statistics are of, and these are not.
    scaled = [each for each in parts if each.symbol in ("*", "/") and each.size == size]
    axes = {_axes(each) for each in parts if each.symbol in ("M", "V")}
    if not has_root or not any(each.num_large == 1 for each in scaled) or len(axes) != 1:
        return None
    names = {"trailing": kind.name, "channels": "batch_norm"}
    return names.get(axes.pop())


def _is_log_of_chosen(parts: Sequence[_Call], size: int) -> bool:
    """Return whether the logarithm in a cross entropy, if it has one, is of probabilities as they are, but for a small number.

    ::

        softmax [512,8000]   take_along_axis [512,8000]   scale [512,1]      log [512,1]
        softmax [512,8000]   take_along_axis [512,8000]   multiply [512,1]   log [512,1]     no: of a mixture
        softmax [512,8000]   scale(1) [512,8000]          log [512,8000]                     no: of 1 - p
    """
    place = next((number for number, each in enumerate(parts) if each.symbol == "l"), None)
    if place is None:
        return True
    log, ahead = parts[place], parts[:place]
    scales = [each for each in ahead if each.symbol == "K" and each.size == size]
    if log.size < size:
        # Operators on few elements have no symbol in the pattern.
        large = [each for each in ahead if each.symbol and each.size == size]
        between = ahead[ahead.index(large[-1]) + 1 :]
        if large[-1].symbol not in ("G", "U") or not all(
            _keeps(each, log.size) for each in between
        ):
            return False
        scales += [each for each in between if each.symbol == "K"]
    return len(scales) <= 1 and all(map(_adds_fraction, scales))


def _keeps(call: _Call, size: int) -> bool:
    """Return whether an operator on so many elements changes them not at all, by a scale or a clip."""
    return call.symbol in ("", "K", "C") and call.size in (0, size) and call.num_large <= 1


def _adds_fraction(call: _Call) -> bool:
    """Return whether a scale may be an addition of a small number: its numbers that are recorded are whole ones.

    ::

        x + 1e-9                {}                      1 - x    {"X1":1}
        scale(x, 1.0, 1e-9)     {"X1":1,"X3":true}      x * 2    {"X1":2}
    """
    given = attributes_of(call.attributes)
    numbers = [given.get(name) for name in ("X1", "X2", "X3")]
    return call.name == "scale" and numbers in ([None] * 3, [1, None, True])


def _axes(call: _Call) -> str:
    """Return over which axes a mean is: ``trailing`` ones, all but ``channels``, or "" for others."""
    value = attributes_of(call.attributes).get("X1")
    given = value if isinstance(value, list) else [value]
    axes = {each % call.rank for each in given if type(each) is int and call.rank}
    if len(axes) != len(given):
        return ""
    num_others = call.rank - len(axes)
    if num_others and axes == set(range(num_others, call.rank)):
        return "trailing"
    return "channels" if 0 in axes and num_others == 1 else ""


def _kept(kind: _Kind, parts: Sequence[_Call], size: int, *, on_device: bool) -> float:
    """Return the share of the time of some operators that one in place of them takes."""
    if kind.kept is not None:
        return kind.kept[on_device]
    passes = sum(
        each.num_large + (each.symbol not in _REDUCTIONS) for each in parts if each.size == size
    )
    return min(1.0, kind.passes / max(1, passes))


def _attentions(
    calls: Sequence[_Call], texts: Mapping[int, Sequence[str | None]]
) -> Iterator[_Match]:
    """Yield the operators on scores between two products, the second of which reads them.

    ::

        q k'  [8,16,1024,1024]     scale   add   softmax   dropout     [8,16,1024,1024] v

    Not with a mask for each head: positions that are trained, whose gradient the one operator does not compute.
    """
    text = "".join(each.symbol or "." for each in calls)
    begin = 0
    while (place := _ATTENTION.search(text, begin)) is not None:
        begin = place.end() - 1
        softmax = calls[place.start() + place[0].index("S")]
        last = calls[begin]
        parts = [each for each in calls[place.start() + 1 : begin] if each.size == softmax.size]
        is_half = "float16" in (texts[last.row][0] or "")
        masks = (shape for each in parts for shape in _shapes(texts[each.row][1])[1:])
        has_positions = any(len(shape) > 2 and shape[-3] > 1 for shape in masks)
        if is_half and not has_positions and last.size == softmax.size >= _LEAST_ELEMENTS:
            yield _Match("attention", [each.row for each in parts], 0.0, softmax.row)


def _distances(own: pl.DataFrame, *, on_device: bool) -> Iterator[_Match]:
    """Yield the operators on the differences of all pairs of rows, if nothing else reads these.

    ::

        subtract [8,256,1,64] [8,1,256,64]   square [8,256,256,64]   sum(-1) [8,256,256,64]
    """
    rows = own.select("row", "name", "shapes", "attributes").rows()
    calls = [(row, name.rstrip("_"), _shapes(text), each) for row, name, text, each in rows]
    matches: list[tuple[Shape, _Match]] = []
    for place, (row, name, shapes, _) in enumerate(calls):
        pairs = _pairs(shapes) if name == "subtract" else None
        if pairs is None or math.prod(pairs) < _LEAST_ELEMENTS:
            continue
        parts = calls[place + 1 : place + 3]
        if parts and parts[0][1] == "p_norm":
            # Of fewer rows, paddle.cdist itself does so.
            parts = parts[:1] if max(pairs[-3:-1]) > _LEAST_ROWS else []
        if _adds_squares(parts, pairs):
            kept = min(1.0 if on_device else 0.3, 2 / pairs[-1])
            found = [row, *(each for each, *_ in parts)]
            matches.append((pairs, _Match("distance", found, kept, found[1])))
    known = {row for _, match in matches for row in match.rows}
    others = {shape for row, _, shapes, _ in calls if row not in known for shape in shapes}
    yield from (match for pairs, match in matches if pairs not in others)


def _pairs(shapes: Sequence[Shape]) -> Shape | None:
    """Return the shape of what an operator makes of all pairs of the rows of two tensors; None of other tensors.

    >>> _pairs([(8, 256, 1, 64), (1, 512, 64)]), _pairs([(8, 256, 64), (8, 1, 64)])
    ((8, 256, 512, 64), None)
    """
    if len(shapes) != 2 or min(map(len, shapes)) < 2:
        return None
    rank = max(map(len, shapes))
    first, second = ((1,) * (rank - len(each)) + each for each in shapes)
    dims = list(zip(first, second))
    is_pairs = any(a < b for a, b in dims[:-1]) and any(a > b for a, b in dims[:-1])
    return tuple(map(max, dims)) if is_pairs and first[-1] == second[-1] > 1 else None


def _adds_squares(parts: Sequence[tuple[int, str, list[Shape], str | None]], pairs: Shape) -> bool:
    """Return whether operators are a square and a sum or mean over the last axis, or the norm of it."""
    if not parts or any(shape != pairs for *_, shapes, _ in parts for shape in shapes):
        return False
    given = [attributes_of(attributes) for *_, attributes in parts]
    last = (-1, len(pairs) - 1, [-1], [len(pairs) - 1])
    if parts[0][1] == "p_norm":
        return given[0].get("X1") == 2 and given[0].get("X2") in last
    names = [name for _, name, *_ in parts]
    is_square = names[0] in ("square", "multiply") or (
        names[0] == "pow" and given[0].get("X1") == 2
    )
    return (
        is_square
        and names[1:] in (["sum"], ["mean"])
        and (given[1].get("X1", given[1].get("axis")) in last)
    )


def _with_times(profile: Profile, calls: pl.DataFrame, matches: Sequence[_Match]) -> WrittenOut:
    """Return the matches with their times."""
    tree = profile.tree
    match_of = np.full(tree.hosts.height, -1, np.int64)
    for number, match in enumerate(matches):
        match_of[list(match.rows)] = number
    forward = profile.trace.events["forward"].slice(0, tree.hosts.height)
    time_ns = tree.hosts[tree.time_column].to_numpy()
    sums = np.bincount(match_of[match_of >= 0], time_ns[match_of >= 0], len(matches))
    sums[[match.kind == _OF_GRADIENTS for match in matches]] = 0
    is_node = (forward.is_not_null() & (tree.hosts["category"] == "Operator")).to_numpy()
    of_nodes = match_of[forward.filter(pl.Series(is_node)).to_numpy()]
    known = of_nodes >= 0
    sums = sums + np.bincount(of_nodes[known], time_ns[is_node][known], len(matches))
    kept = np.array([match.kept_ratio for match in matches])
    shown = calls.select("step", "shapes", shown=pl.col("row").cast(pl.Int64))
    table = pl.DataFrame(
        {
            "row": [match.rows[0] for match in matches],
            "shown": [match.shown for match in matches],
            "kind": [match.kind for match in matches],
            "time_ns": sums.round(),
            "saved_ns": (sums * (1 - kept)).round(),
        }
    ).join(shown, "shown", "left", maintain_order="left")
    shape = map_texts(table["shapes"], lambda text: shapes_as_shown(text).split(" ")[0])
    table = table.with_columns(name=pl.concat_str(["kind", pl.lit(" "), shape], ignore_nulls=True))
    table = table.filter(pl.col("saved_ns") > 0).select(*WRITTEN_OUT).cast(WRITTEN_OUT)  # type: ignore[arg-type]
    return WrittenOut(table, [row for match in matches for row in match.rows])


def _shapes(text: str | None) -> list[Shape]:
    """Return the shape of each tensor of a text of the column ``shapes``; none if one is no shape."""
    shapes = shapes_in(text)
    is_known = all(num_elements([shape]) is not None for shape in shapes)
    return shapes if is_known else []
