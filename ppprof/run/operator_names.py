"""Files that say which names count as one operator when two runs are compared."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

import yaml

from ppprof.analysis.diff.naming import normalized
from ppprof.errors import InputError
from ppprof.paths import read_bounded, to_path
from ppprof.safe_yaml import safe_load

_MOST_BYTES = 1 << 20


def read_names(path: str | Path) -> dict[str, str]:
    """Return the operator that each name counts as, from a file ``name: [other names...]``.

    Raises:
        InputError: missing, or not such a file; says where.
    """
    try:
        text = read_bounded(to_path(path), _MOST_BYTES).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    return _parsed(text, str(path))


def built_in_names() -> dict[str, str]:
    """Return the operator that each name of Paddle's and PyTorch's counts as."""
    source = files("ppprof.analysis.diff").joinpath("operator_names.yaml")
    return _parsed(source.read_text("utf-8"), "operator_names.yaml")


def _parsed(text: str, where: str) -> dict[str, str]:
    expected = "expected lines such as 'matmul: [matmul, \"aten::mm\"]'"
    try:
        groups = safe_load(text) or {}
    except (yaml.YAMLError, ValueError) as error:  # ValueError: such as 2024-13-45
        raise InputError(f"{where}: {' '.join(str(error).split())}; {expected}") from error
    if not isinstance(groups, Mapping):
        raise InputError(f"{where}: {expected}")
    problems: list[str] = []
    operators: dict[str, str] = {}
    for operator, names in groups.items():
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            problems.append(f"{where}: {operator}: {names!r}: {expected}")
            continue
        for name in names:
            first = operators.setdefault(normalized(name), str(operator))
            if first != str(operator):
                problems.append(f"{where}: {name}: counts as {first} and as {operator}")
    if problems:
        raise InputError("\n".join(problems))
    return operators
