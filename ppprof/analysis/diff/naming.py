"""Names by which operators and kernels are compared across builds and frameworks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from itertools import product
from typing import Any, NamedTuple

import polars as pl

from ppprof.trace.labels import map_texts
from ppprof.trace.schema import OPERATOR_OF_PROGRAM

_NAMESPACES = re.compile(r"\(anonymous namespace\)::|<unnamed>::|_GLOBAL__N_\w+::")
_EVALUATE = "autograd::engine::evaluate_function: "
"""The prefix with which torch names the span around a gradient node."""
_FUNCTOR = re.compile(
    r"\b(?:\w*(?:Functor|[kK]ernelImpl|_kernel_impl|_kernel_cuda)\w*|cutlass_\w+)"
)
_BUILDS = (
    (re.compile(r"^(ampere|turing|volta|maxwell|hopper|sm\d+a?)_(?=\w)"), ""),
    (re.compile(r"(?<=_)sm\d+a?(?=_|$)"), "sm"),
    (re.compile(r"^cutlass_\d+_"), "cutlass_"),
    (re.compile(r"(^triton_\w*?)(_\d\w*)?$"), r"\1"),
)
"""Patterns of the parts of a kernel name that state its architecture or build, and replacements."""


_LINE = re.compile(r"(?P<file>.+?):(?P<number>[0-9]+)(?P<function>(, [^:]*)?)(?P<source>(: .*)?)")
"""A name of `ppprof.analysis.profile.python_lines.line_name`."""


class _Line(NamedTuple):
    """The lines of one key in one run."""

    file: str
    function: str
    """``, log()``; empty for code outside functions."""
    source: str
    """``: save(x)``; empty if it is unknown or not compared."""
    numbers: tuple[int, ...]


_Side = dict[str, _Line]
"""The lines of one run, keyed by what they are compared by."""
_NEAR = 1
"""Most lines between the places of an edited line: of two lines farther apart, a run may have sampled one by chance."""
_ALIKE = 0.6
"""Texts of lines that are less alike are two lines, not an edited one: `difflib.SequenceMatcher.ratio`."""


def keys_of_lines(
    baseline: Iterable[str], experiment: Iterable[str]
) -> tuple[Mapping[str, str], Mapping[str, str], Mapping[str, str]]:
    """Return by what lines of two runs are compared, since their numbers change with the code.

    ::

        train.py:7, log(): save(x)   train.py:9, log(): save(x)   train.py:7 -> 9, log(): save(x)
        train.py:7, log(): save(x)   train.py:9, log(): dump(x)   train.py:7 -> 9, log(): save(x) -> dump(x)
        train.py:7, log(): save(x)   io.py:9, write(): save(x)    train.py:7, log(): save(x) -> io.py:9, write(): save(x)
        train.py:7, log()            train.py:7, log(): save(x)   train.py:7, log()

    A line is that of equal text in the same function and file; where a run has kept no source, that of
    equal number. Of the lines that only one run has, those of equal text elsewhere are one moved line, and those of a like text
    at one place between the same lines of a function are one edited line. The last mapping is from keys
    to names, which are those on the right.
    """
    parsed = [
        {name: _LINE.fullmatch(name) for name in sorted(set(names))}
        for names in (baseline, experiment)
    ]
    has_source = all(any(line and line["source"] for line in side.values()) for side in parsed)
    keys: list[dict[str, str]] = [{}, {}]
    sides: list[_Side] = [{}, {}]
    for key_of, side, lines in zip(keys, sides, parsed):
        for name, line in lines.items():
            if line is None:
                key_of[name] = name
                continue
            source = line["source"] * has_source
            key = (
                f"{line['file']}{'' if source else ':' + line['number']}{line['function']}{source}"
            )
            key_of[name] = key
            numbers = side[key].numbers if key in side else ()
            numbers = tuple(sorted({*numbers, int(line["number"])}))
            side[key] = _Line(line["file"], line["function"], source, numbers)
    shown = {}
    partners = _partners(*sides)
    for key in {**sides[0], **sides[1]}:
        before, after = sides[0].get(key), sides[1].get(partners.get(key, key))
        shown[key] = _shown(*(line for line in (before, after) if line is not None))
    old_of = {new: old for old, new in partners.items()}
    return keys[0], {name: old_of.get(key, key) for name, key in keys[1].items()}, shown


def _shown(*lines: _Line) -> str:
    """Return the name of a line in one run or in two."""
    if len({line[:2] for line in lines}) > 1:
        return " -> ".join(map(_shown, lines))
    numbers, sources = (
        dict.fromkeys(",".join(map(str, line.numbers)) for line in lines),
        dict.fromkeys(line.source.removeprefix(": ") for line in lines),
    )
    source = " -> ".join(sources)
    return f"{lines[0].file}:{' -> '.join(numbers)}{lines[0].function}{': ' * bool(source)}{source}"


def _partners(baseline: _Side, experiment: _Side) -> dict[str, str]:
    """Return the moved and edited lines: key in the baseline -> key in the experiment.

    Moved ones come first, since a function that is put around a line leaves a call in its place.
    """
    gone = [key for key in baseline if key not in experiment]
    new = [key for key in experiment if key not in baseline]
    moved, edited = [], []
    for old, now in product(gone, new):
        one, other = baseline[old], experiment[now]
        if one.source and one.source == other.source:
            far = abs(one.numbers[0] - other.numbers[0])
            moved.append(((one.function != other.function, one.file != other.file, far), old, now))
    partners = _one_to_one(moved)
    files = _renamed_files(baseline, experiment, partners)
    in_both = [(line, experiment[key]) for key, line in baseline.items() if key in experiment]
    in_both += [(baseline[old], experiment[now]) for old, now in partners.items()]
    left = set(new) - set(partners.values())
    for old, now in product((key for key in gone if key not in partners), left):
        one, other = baseline[old], experiment[now]
        if (files.get(one.file, one.file), one.function) != other[:2]:
            continue
        distance = _distance(one, other, in_both)
        if distance is not None and distance <= _NEAR:
            alike = _alike(one.source, other.source)
            if alike >= _ALIKE:
                edited.append(((distance, -alike), old, now))
    return {**partners, **_one_to_one(edited)}


def _one_to_one(pairs: Iterable[tuple[Any, str, str]]) -> dict[str, str]:
    """Return the pairs with the least first values of which no other one has a part."""
    partners: dict[str, str] = {}
    taken: set[str] = set()
    for _, old, now in sorted(pairs):
        if old not in partners and now not in taken:
            partners[old] = now
            taken.add(now)
    return partners


def _renamed_files(
    baseline: _Side, experiment: _Side, moved: Mapping[str, str]
) -> Mapping[str, str]:
    """Return the files that only one run has, and between which the most lines have moved: old -> new."""
    sides = [{line.file for line in side.values()} for side in (baseline, experiment)]
    pairs = Counter(
        (baseline[old].file, experiment[now].file)
        for old, now in moved.items()
        if baseline[old].file not in sides[1] and experiment[now].file not in sides[0]
    )
    return _one_to_one((-num, *pair) for pair, num in pairs.items())


def _alike(one: str, other: str) -> float:
    """Return how alike two texts are, 0 to 1: 1 if one is in the other; 0 if one is unknown."""
    texts = one.removeprefix(": "), other.removeprefix(": ")
    if not all(texts):
        return 0.0
    is_part = min(texts, key=len) in max(texts, key=len)
    return 1.0 if is_part else SequenceMatcher(None, *texts).ratio()


def _distance(before: _Line, after: _Line, in_both: Iterable[tuple[_Line, _Line]]) -> int | None:
    """Return how far two lines of a function are apart, counted from lines of both runs in their file.

    None if a line of both runs in that function lies between them.
    """
    distances = []
    for one, other in in_both:
        if (one.file, other.file) != (before.file, after.file):
            continue
        steps = [
            line.numbers[0] - near.numbers[0] for line, near in ((before, one), (after, other))
        ]
        if one.function == before.function and (steps[0] < 0) != (steps[1] < 0):
            return None
        distances.append(abs(steps[1] - steps[0]))
    return min(distances, default=abs(after.numbers[0] - before.numbers[0]))


@dataclass(frozen=True)
class Naming:
    """How operators and kernels are named in a comparison of two runs; can be pickled."""

    exact: bool = False
    """Whether operators and kernels keep their recorded names."""
    same: Mapping[str, str] = field(default_factory=dict)
    """The name that frameworks have in common, keyed by the `normalized` name of one framework.
    Empty unless runs of two frameworks are compared."""

    def is_whole(self, name: str) -> bool:
        """Return whether the operators that an operator calls count as part of it.

        They count for gradients if frameworks are compared, because torch's gradients contain
        operators and Paddle's do not.
        """
        return name.endswith(" grad") and name in self.same.values()

    def common_name(self, name: str) -> str:
        """Return the name by which an operator or kernel is compared.

        This is ``name`` itself if ``exact``; else the name in ``same``, or the `normalized` name.
        """
        if self.exact:
            return name
        short = normalized(name)
        return self.same.get(short, short)

    def apply(self, names: pl.Series) -> pl.Series:
        """Return the `common_name` of each of ``names`` (String or Categorical), as String."""
        return map_texts(names, self.common_name)


def normalized(name: str) -> str:
    """Return a name without the parts that depend on the build: templates, arguments, architecture.

    Functors and similar template arguments stay, because they distinguish the uses of a generic
    kernel.

    >>> normalized("void phi::funcs::VectorizedKernel<float, phi::AddFunctor<float>, 2, 4>(int)")
    'phi::funcs::VectorizedKernel<AddFunctor>'
    >>> normalized("ampere_sgemm_128x64_tn"), normalized("sm80_xmma_gemm_f32"), normalized("a<1>")
    ('sgemm_128x64_tn', 'xmma_gemm_f32', 'a')
    >>> normalized("matmul dygraph"), normalized("pd_op.matmul"), normalized("Optimizer.step#Adam.step")
    ('matmul', 'matmul', 'Optimizer.step#Adam.step')
    """
    short = (
        _NAMESPACES.sub("", name)
        .removeprefix(_EVALUATE)
        .removeprefix(OPERATOR_OF_PROGRAM)
        .removesuffix(" dygraph")
        .removesuffix(" static")
        .strip()
    )
    head, arguments = _split_cpp_name(short)
    functors = list(
        dict.fromkeys(_without_build(functor) for functor in _FUNCTOR.findall(arguments))
    )
    head = _without_build(head) or short
    return f"{head}<{', '.join(functors)}>" if functors else head


def _without_build(name: str) -> str:
    for pattern, replacement in _BUILDS:
        name = pattern.sub(replacement, name)
    return name


def _split_cpp_name(name: str) -> tuple[str, str]:
    """Split the name of a C++ function or kernel; return its bare name, and its arguments as text.

    The bare name has no return type, no template arguments and no call arguments. The text holds
    the template and call arguments, with their brackets. Other names, such as ``rpc#f(a -> b)`` or
    ``a < b``, are returned unchanged, with "" as text.

    >>> _split_cpp_name("void phi::Kernel<float>::run(int) const")
    ('phi::Kernel::run', '<float> (int) ')
    """
    if not re.match(
        r"^(void |[\w:~]+ )?[\w:~]+\s*<.*>|^(void |[\w:~]+ )?[\w:~]+::[\w:~]+\s*\(", name
    ):
        return name, ""
    outside: list[str] = []
    inside: list[str] = []
    depth = 0
    text = name.replace("operator()", "call").replace("->", "")
    for char in text:
        if char in "<(":
            depth += 1
        (inside if depth else outside).append(char)
        if char in ">)":
            depth -= 1
            inside.append(" ")
    if depth:
        return name, ""
    head = "".join(outside).removesuffix(" const").strip()
    return head.rpartition(" ")[2] or name, "".join(inside)
