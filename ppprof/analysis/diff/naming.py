"""Names by which operators and kernels are compared across builds and frameworks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

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


def keys_of_lines(
    baseline: Iterable[str], experiment: Iterable[str]
) -> tuple[Mapping[str, str], Mapping[str, str], Mapping[str, str]]:
    """Return by what lines of two runs are compared, since their numbers change with the code.

    ::

        train.py:7, log(): save(x)   train.py:9, log(): save(x)   train.py, log(): save(x)
        train.py:7, log()            train.py:7, log(): save(x)   train.py:7, log()

    A line is that of equal text in the same function and file; where a run has kept no source, that of
    equal number. The last mapping is from keys to names with the numbers of both runs:
    ``train.py:7 -> 9, log(): save(x)``.
    """
    sides = [
        {name: _LINE.fullmatch(name) for name in set(names)} for names in (baseline, experiment)
    ]
    has_source = all(any(line and line["source"] for line in side.values()) for side in sides)
    keys: list[dict[str, str]] = []
    numbers: dict[str, list[set[int]]] = {}
    parts: dict[str, tuple[str, str]] = {}
    for number, side in enumerate(sides):
        keys.append({})
        for name, line in side.items():
            if line is None:
                keys[-1][name] = name
                continue
            rest = line["function"] + line["source"] * has_source
            is_named = has_source and line["source"]
            key = f"{line['file']}{'' if is_named else ':' + line['number']}{rest}"
            keys[-1][name] = key
            parts[key] = line["file"], rest
            numbers.setdefault(key, [set(), set()])[number].add(int(line["number"]))
    shown = {}
    for key, (file, rest) in parts.items():
        texts = [",".join(map(str, sorted(each))) for each in numbers[key] if each]
        shown[key] = f"{file}:{' -> '.join(dict.fromkeys(texts))}{rest}"
    return keys[0], keys[1], shown


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
