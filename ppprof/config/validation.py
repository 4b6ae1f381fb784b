"""Convert plain values to frozen dataclasses by their type hints.

Problems are collected in a `Problems` object and not raised, so that a user sees all problems at
once.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from ppprof.config.yaml_source import ConfigTree, Key
from ppprof.errors import Problem

T = TypeVar("T")


def knob(
    default: Any,
    minimum: float | None = None,
    above: float | None = None,
    maximum: float | None = None,
) -> Any:
    """Return a dataclass field with a default value and bounds that `read_block` checks.

    Args:
        default: value of a missing or null key.
        minimum: the least valid value; None for no such bound.
        above: valid values are greater than this; None for no such bound.
        maximum: the greatest valid value; None for no such bound.
    """
    bounds = {"minimum": minimum, "above": above, "maximum": maximum}
    return field(default=default, metadata=bounds)


@dataclass
class Problems:
    """The errors and warnings of one config, each with the place that set the key.

    Errors make the config invalid; warnings do not.
    """

    source: ConfigTree
    """Where each key was set."""
    errors: list[Problem] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def add(self, key: Key, message: str) -> None:
        """Add an error about ``key``, which may be empty for the whole config."""
        self.errors.append(Problem(self.source.where(key), ".".join(key), message))

    def is_sound(self, *blocks: str) -> bool:
        """Return whether ``blocks``, such as ``"Model"``, have no errors so far.

        Warnings do not count. Check blocks together, or derive values from them, only if they are
        sound.
        """
        return not any(problem.key.split(".")[0] in blocks for problem in self.errors)

    def warn(self, key: Key, message: str) -> None:
        """Add a warning about ``key``, with the place that set the key."""
        self.warnings.append(str(Problem(self.source.where(key), ".".join(key), message)))


def read_block(cls: type[T], values: Any, key: Key, problems: Problems) -> T:
    """Return an instance of dataclass ``cls`` from plain values; add problems to ``problems``.

    Missing and null values get the default. Invalid values get the default and add an error. An
    unknown key adds an error if the class has ``STRICT = True``, else a warning. Keys in the class
    attribute ``UNUSED`` pass without a warning.

    Args:
        cls: the dataclass; its type hints and `knob` bounds say which values are valid.
        values: a mapping; None for a missing block.
        key: the path of the block in the config, such as ``("Profiler",)``.
        problems: gets the errors and warnings.
    """
    if values is None:
        values = {}
    if not isinstance(values, Mapping):
        problems.add(key, f"{values!r}: expected a mapping (key: value)")
        values = {}
    hints = get_type_hints(cls)
    fields = {item.name: item for item in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for name in values:
        if name not in fields:
            _report_unknown_key(cls, name, fields, key, problems)
    arguments = {
        name: _read_value(hints[name], values[name], (*key, name), item, problems)
        for name, item in fields.items()
        if values.get(name) is not None
    }
    return cls(**{name: value for name, value in arguments.items() if value is not _INVALID})


def did_you_mean(name: str, names: Iterable[str], cutoff: float = 0.7) -> str:
    """Return ``; did you mean "X"?`` with the closest of ``names``; empty if no name is close.

    Upper and lower case do not matter.

    Args:
        name: the unknown name.
        names: the valid names.
        cutoff: the least similarity of a close name, from 0 to 1 (``difflib``).
    """
    by_lower = {candidate.lower(): candidate for candidate in names}
    closest = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=cutoff)
    return f'; did you mean "{by_lower[closest[0]]}"?' if closest else ""


def not_a_bool(word: str) -> str:
    """Return the message for the text ``word`` as a value where True or False is expected."""
    return f"{word!r}: expected {expected(bool)}{_hint_for_typo(bool, word)}"


_INVALID = object()
_NAMES = {bool: "True or False", int: "a whole number", float: "a number", str: "text"}


def _report_unknown_key(
    cls: type, name: str, fields: Mapping[str, Any], key: Key, problems: Problems
) -> None:
    hint = did_you_mean(name, fields)
    if getattr(cls, "STRICT", False):
        choices = "" if hint else f"; expected one of {', '.join(fields)}"
        problems.add((*key, name), f"unknown key{hint}{choices}")
    elif name not in getattr(cls, "UNUSED", ()):
        problems.warn((*key, name), f"unknown key, passed through{hint}")


def _read_value(
    hint: Any, value: Any, key: Key, item: dataclasses.Field[Any], problems: Problems
) -> Any:
    """Return ``value`` converted to the type ``hint``; if it is invalid, add an error.

    Returns:
        The value, or `_INVALID`. For the type of a block, an instance of its dataclass, even if
        some of its values are invalid.
    """
    blocks = [choice for choice in (hint, *get_args(hint)) if dataclasses.is_dataclass(choice)]
    if blocks:
        return read_block(blocks[0], value, key, problems)  # type: ignore[arg-type]
    converted = _convert(hint, value)
    if converted is _INVALID:
        problems.add(key, f"{value!r}: expected {expected(hint)}{_hint_for_typo(hint, value)}")
        return _INVALID
    bound = _violated_bound(converted, item)
    if bound:
        problems.add(key, f"{value!r}: expected {bound}")
        return _INVALID
    return converted


def _convert(hint: Any, value: Any) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin is Union:
        results = (_convert(choice, value) for choice in arguments if choice is not type(None))
        return next((result for result in results if result is not _INVALID), _INVALID)
    if origin is Literal:
        return next((choice for choice in arguments if _is_same(choice, value)), _INVALID)
    if origin is tuple:
        if not isinstance(value, (list, tuple, str)):
            return _INVALID
        words = [value] if isinstance(value, str) else value  # one word is a list of one
        items = tuple(_convert(arguments[0], item) for item in words)
        return _INVALID if _INVALID in items else items
    if hint is bool:
        return value if isinstance(value, bool) else _INVALID
    if hint in (int, float):
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return _INVALID
        is_number = math.isfinite(value) and (hint is float or float(value).is_integer())
        return hint(value) if is_number else _INVALID
    return value if isinstance(value, origin or hint) else _INVALID


def _is_same(choice: Any, value: Any) -> bool:
    if isinstance(choice, str) and isinstance(value, str):
        return choice.lower() == value.lower()  # FleetX takes GPU for gpu, o2 for O2
    return type(choice) is type(value) and bool(choice == value)


def expected(hint: Any) -> str:
    """Return the values that a type hint allows, in words; "a mapping (key: value)" for a dataclass.

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
    return _NAMES.get(hint, "a mapping (key: value)")


def _hint_for_typo(hint: Any, value: Any) -> str:
    """Return ``; did you mean "True"?`` if ``value`` resembles a word that the type allows; else ""."""
    return did_you_mean(value, _allowed_words(hint), cutoff=0.5) if isinstance(value, str) else ""


def _allowed_words(hint: Any) -> list[str]:
    """Return the fixed words that the type ``hint`` allows; empty for numbers and free text."""
    if hint is bool:
        return ["True", "False"]
    if get_origin(hint) is Literal:
        return list(map(str, get_args(hint)))
    return [word for choice in get_args(hint) for word in _allowed_words(choice)]


def _violated_bound(value: Any, item: dataclasses.Field[Any]) -> str:
    """Return the bound that ``value`` violates, such as "at least 1"; empty if it violates none.

    Values that are not numbers have no bounds.
    """
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
