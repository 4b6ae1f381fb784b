"""Plain values to frozen dataclasses, by their type hints; every problem is kept, none raised."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from ppprof.config.yaml_source import Key, Source
from ppprof.errors import Problem

T = TypeVar("T")


def knob(
    default: Any,
    minimum: float | None = None,
    above: float | None = None,
    maximum: float | None = None,
) -> Any:
    """A field with a default and bounds; ``above`` is a minimum that itself is too low."""
    bounds = {"minimum": minimum, "above": above, "maximum": maximum}
    return field(default=default, metadata=bounds)


@dataclass
class Problems:
    """What reading found, for a user to see."""

    source: Source
    problems: list[Problem] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def problem(self, key: Key, message: str) -> None:
        """Notes what is wrong with ``key``."""
        self.problems.append(Problem(self.source.where(key), ".".join(key), message))

    def is_sound(self, *blocks: str) -> bool:
        """Whether nothing is wrong so far with the blocks: what is derived from them makes sense."""
        return not any(problem.key.split(".")[0] in blocks for problem in self.problems)

    def warn(self, key: Key, message: str) -> None:
        """Notes what is odd about ``key``."""
        self.warnings.append(str(Problem(self.source.where(key), ".".join(key), message)))


def read_block(cls: type[T], values: Any, key: Key, report: Problems) -> T:
    """An instance of dataclass ``cls``; defaults stand in for what is missing, null or wrong.

    A class attribute ``STRICT = True`` makes an unknown key a problem, otherwise it is a warning;
    keys in ``UNUSED`` are known and pass without one.
    """
    if values is None:
        values = {}
    if not isinstance(values, Mapping):
        report.problem(key, f"{values!r}: expected a block of keys")
        values = {}
    hints = get_type_hints(cls)
    fields = {item.name: item for item in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for name in values:
        if name not in fields:
            _unknown(cls, name, fields, key, report)
    arguments = {
        name: _value(hints[name], values[name], (*key, name), item, report)
        for name, item in fields.items()
        if values.get(name) is not None
    }
    return cls(**{name: value for name, value in arguments.items() if value is not _WRONG})


def did_you_mean(name: str, names: Iterable[str], cutoff: float = 0.7) -> str:
    """A hint at the nearest of ``names``; empty where none is near."""
    by_lower = {known.lower(): known for known in names}
    nearest = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=cutoff)
    return f'; did you mean "{by_lower[nearest[0]]}"?' if nearest else ""


def not_a_bool(word: str) -> str:
    """What is wrong with a word where True or False belongs."""
    return f"{word!r}: expected {expected(bool)}{_nearest(bool, word)}"


_WRONG = object()
_NAMES = {bool: "True or False", int: "a whole number", float: "a number", str: "text"}


def _unknown(cls: type, name: str, fields: Mapping[str, Any], key: Key, report: Problems) -> None:
    hint = did_you_mean(name, fields)
    if getattr(cls, "STRICT", False):
        known = "" if hint else f"; expected one of {', '.join(fields)}"
        report.problem((*key, name), f"unknown key{hint}{known}")
    elif name not in getattr(cls, "UNUSED", ()):
        report.warn((*key, name), f"unknown key, passed through{hint}")


def _value(hint: Any, value: Any, key: Key, item: dataclasses.Field[Any], report: Problems) -> Any:
    """``value`` as ``hint`` asks, or `_WRONG` once the report has the problem."""
    blocks = [choice for choice in (hint, *get_args(hint)) if dataclasses.is_dataclass(choice)]
    if blocks:
        return read_block(blocks[0], value, key, report)  # type: ignore[arg-type]
    converted = _converted(hint, value)
    if converted is _WRONG:
        report.problem(key, f"{value!r}: expected {expected(hint)}{_nearest(hint, value)}")
        return _WRONG
    bound = _out_of_bounds(converted, item)
    if bound:
        report.problem(key, f"{value!r}: expected {bound}")
        return _WRONG
    return converted


def _converted(hint: Any, value: Any) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin is Union:
        tries = (_converted(choice, value) for choice in arguments if choice is not type(None))
        return next((found for found in tries if found is not _WRONG), _WRONG)
    if origin is Literal:
        return next((choice for choice in arguments if _is_same(choice, value)), _WRONG)
    if origin is tuple:
        if not isinstance(value, (list, tuple, str)):
            return _WRONG
        words = [value] if isinstance(value, str) else value  # one word is a list of one
        items = tuple(_converted(arguments[0], item) for item in words)
        return _WRONG if _WRONG in items else items
    if hint is bool:
        return value if isinstance(value, bool) else _WRONG
    if hint in (int, float):
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return _WRONG
        is_one = math.isfinite(value) and (hint is float or float(value).is_integer())
        return hint(value) if is_one else _WRONG
    return value if isinstance(value, origin or hint) else _WRONG


def _is_same(choice: Any, value: Any) -> bool:
    if isinstance(choice, str) and isinstance(value, str):
        return choice.lower() == value.lower()  # FleetX takes GPU for gpu, o2 for O2
    return type(choice) is type(value) and bool(choice == value)


def expected(hint: Any) -> str:
    """A type hint in words.

    >>> expected(tuple[Literal["json", "pb"], ...])
    'a list, each item json or pb'
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Union:
        return " or ".join(expected(choice) for choice in arguments if choice is not type(None))
    if origin is Literal:
        return " or ".join(filter(None, [", ".join(map(str, arguments[:-1])), str(arguments[-1])]))
    if origin is tuple:
        return f"a list, each item {expected(arguments[0])}"
    return _NAMES.get(hint, "a block of keys")


def _nearest(hint: Any, value: Any) -> str:
    """A hint at what a mistyped word was meant to be."""
    return did_you_mean(value, _words(hint), cutoff=0.5) if isinstance(value, str) else ""


def _words(hint: Any) -> list[str]:
    """The words that ``hint`` has room for."""
    if hint is bool:
        return ["True", "False"]
    if get_origin(hint) is Literal:
        return list(map(str, get_args(hint)))
    return [word for choice in get_args(hint) for word in _words(choice)]


def _out_of_bounds(value: Any, item: dataclasses.Field[Any]) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return ""
    minimum, above, maximum = (item.metadata.get(name) for name in ("minimum", "above", "maximum"))
    if minimum is not None and value < minimum:
        return f"at least {minimum}"
    if above is not None and value <= above:
        return f"more than {above}"
    if maximum is not None and value > maximum:
        return f"at most {maximum}"
    return ""
