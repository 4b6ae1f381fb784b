"""Names as they compare between two runs: over builds of a kernel, and over frameworks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import polars as pl

_NAMESPACES = re.compile(r"\(anonymous namespace\)::|<unnamed>::|_GLOBAL__N_\w+::")
_EVALUATE = "autograd::engine::evaluate_function: "
"""What torch calls a grad node in whose name it runs."""
_FUNCTOR = re.compile(
    r"\b(?:\w*(?:Functor|[kK]ernelImpl|_kernel_impl|_kernel_cuda)\w*|cutlass_\w+)"
)
_BUILDS = (
    (re.compile(r"^(ampere|turing|volta|maxwell|hopper|sm\d+a?)_(?=\w)"), ""),
    (re.compile(r"(?<=_)sm\d+a?(?=_|$)"), "sm"),
    (re.compile(r"^cutlass_\d+_"), "cutlass_"),
    (re.compile(r"(^triton_\w*?)(_\d\w*)?$"), r"\1"),
)
"""What tells the architecture or the build of a kernel, and not what it does."""


@dataclass(frozen=True)
class Naming:
    """What an operator or kernel is called when two runs are compared; can be pickled."""

    exact: bool = False
    """Names as they were recorded."""
    same: Mapping[str, str] = field(default_factory=dict)
    """Name, as `normalized` has it -> the name it counts as: across frameworks."""

    def is_whole(self, name: str) -> bool:
        """Whether an operator counts with all operators that it calls, which are none of their own.

        Of frameworks that are compared, those are gradients: Paddle's have no operators in them,
        as torch's have.
        """
        return name.endswith(" grad") and name in self.same.values()

    def of(self, name: str) -> str:
        """The name to compare by."""
        if self.exact:
            return name
        found = normalized(name)
        return self.same.get(found, found)

    def applied(self, names: pl.Series) -> pl.Series:
        """``names`` (String or Categorical) as they compare: String."""
        distinct = names.cast(pl.String).unique().drop_nulls().to_list()
        known = {name: self.of(name) for name in distinct}
        texts: pl.Series = names.cast(pl.String)
        found: pl.Series = texts.replace_strict(known, default=None, return_dtype=pl.String)
        return found


def normalized(name: str) -> str:
    """A name without what differs from build to build: templates, arguments, architecture.

    Functors, and what else a kernel is made for, stay: they say what a kernel of many does.

    >>> normalized("void phi::funcs::VectorizedKernel<float, phi::AddFunctor<float>, 2, 4>(int)")
    'phi::funcs::VectorizedKernel<AddFunctor>'
    >>> normalized("ampere_sgemm_128x64_tn"), normalized("sm80_xmma_gemm_f32"), normalized("a<1>")
    ('sgemm_128x64_tn', 'xmma_gemm_f32', 'a')
    >>> normalized("matmul dygraph"), normalized("Optimizer.step#Adam.step")
    ('matmul', 'Optimizer.step#Adam.step')
    """
    short = (
        _NAMESPACES.sub("", name)
        .removeprefix(_EVALUATE)
        .removesuffix(" dygraph")
        .removesuffix(" static")
        .strip()
    )
    head, arguments = _without(short)
    functors = list(dict.fromkeys(_built(found) for found in _FUNCTOR.findall(arguments)))
    head = _built(head) or short
    return f"{head}<{', '.join(functors)}>" if functors else head


def _built(name: str) -> str:
    for pattern, replacement in _BUILDS:
        name = pattern.sub(replacement, name)
    return name


def _without(name: str) -> tuple[str, str]:
    """A C++ name without template arguments, parameters and return type; and what was taken out.

    A name that is no C++ function's, such as ``rpc#f(a -> b)`` or ``a < b``, stays as it is.
    """
    if not re.match(
        r"^(void |[\w:~]+ )?[\w:~]+\s*<.*>|^(void |[\w:~]+ )?[\w:~]+::[\w:~]+\s*\(", name
    ):
        return name, ""
    kept: list[str] = []
    taken: list[str] = []
    depth = 0
    text = name.replace("operator()", "call").replace("->", "")
    for char in text:
        if char in "<(":
            depth += 1
        (taken if depth else kept).append(char)
        if char in ">)":
            depth -= 1
            taken.append(" ")
    if depth:
        return name, ""
    head = "".join(kept).removesuffix(" const").strip()
    return head.rpartition(" ")[2] or name, "".join(taken)
