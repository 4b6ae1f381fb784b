"""Translate the ``profiler_options`` of PaddleClas, PaddleDetection and PaddleOCR to our keys.

``batch_range=[50, 60]; state=GPU; sorted_key=max; tracer_option=OpDetail; profile_path=log``

=================== ==================================== ==============================================
theirs              ours                                 if missing
=================== ==================================== ==============================================
`batch_range`       `scheduler`, with the same meaning   `[10, 20]`, their default
`exit_on_finished`  `stop_training`                      True, as theirs
`profile_path`      `profiler_log`                       our default; theirs is /tmp/profile
`state`             `targets`: CPU, GPU (with CPU), All  all
`sorted_key`        `sorted_by`                          auto
`tracer_option`     `op_detail`: False for Default       our default, True
`timer_only`        `timer_only`                         False; theirs is True, so no trace
=================== ==================================== ==============================================

Source: ``utils/profiler.py`` of the three projects. These projects ignore invalid values; ppprof
reports them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ppprof.config.validation import did_you_mean
from ppprof.config.yaml_source import literal


def read_options(options: Any) -> tuple[dict[str, Any], list[str]]:
    """Return the values of a ``Profiler`` block that match the options, and a list of errors.

    Invalid options add an error and no value. With ``state=GPU``, ``sorted_key=max`` sorts by GPU
    time (``gpu_max``), otherwise by CPU time (``cpu_max``); ``min`` and ``ave`` likewise.

    Args:
        options: the option string, or a mapping of option names to values. PaddleClas accepts both.

    >>> read_options("batch_range=[50, 60]; state=CPU; exit_on_finished=False")
    ({'enable': True, 'scheduler': [50, 60], 'stop_training': False, 'targets': ['cpu']}, [])
    >>> read_options("batch_rang=[50, 60]; state=TPU")[1]
    ['batch_rang: unknown option; did you mean "batch_range"?', "state: 'TPU': expected CPU, GPU or All"]
    """
    texts, problems = _split_options(options)
    values: dict[str, Any] = {"enable": True, "scheduler": [10, 20], "stop_training": True}
    for name, text in texts.items():
        if name not in _READERS:
            hint = did_you_mean(name, _READERS) or f"; expected one of {', '.join(_READERS)}"
            problems.append(f"{name}: unknown option{hint}")
            continue
        try:
            values.update(_READERS[name](text))
        except ValueError as error:
            problems.append(f"{name}: {text!r}: expected {error}")
    order = texts.get("sorted_key")
    if order in _ORDERS and values.get("targets") == ["cpu", "gpu"]:
        values["sorted_by"] = values["sorted_by"].replace("cpu", "gpu")
    return values, problems


def options_text(options: Any) -> str:
    """Return options as the text that `read_options` reads, also those that are given as a mapping."""
    if not isinstance(options, Mapping):
        return str(options)
    return "; ".join(f"{name}={value}" for name, value in _split_options(options)[0].items())


def _split_options(options: Any) -> tuple[dict[str, str], list[str]]:
    """Return the text of each option, keyed by name, and a list of errors.

    Blanks around names and values are ignored. An option that is given twice is an error, and its
    first value counts.
    """
    if isinstance(options, Mapping):
        return {str(name): str(value) for name, value in options.items() if value is not None}, []
    if not isinstance(options, str):
        return {}, [f"{options!r}: expected text such as batch_range=[50, 60]; profile_path=log"]
    texts: dict[str, str] = {}
    problems = []
    for part in filter(None, map(str.strip, options.split(";"))):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not equals or not name or not value:
            problems.append(f"{part!r}: expected NAME=VALUE")
        elif name in texts:
            problems.append(f"{name}: given twice, {texts[name]!r} and {value!r}")
        else:
            texts[name] = value
    return texts, problems


_ORDERS = {"total": "auto", "max": "cpu_max", "min": "cpu_min", "ave": "cpu_avg", "calls": "auto"}
_STATES: Mapping[str, Any] = {"cpu": ["cpu"], "gpu": ["cpu", "gpu"], "all": "auto"}
_TRUE, _FALSE = ("yes", "true", "t", "1"), ("no", "false", "f", "0")


def _batch_range(text: str) -> dict[str, Any]:
    value = literal(text if text[:1] in ("[", "(") else f"[{text}]")
    is_range = isinstance(value, (list, tuple)) and len(value) == 2
    if not is_range or not all(type(n) is int for n in value) or not 0 <= value[0] < value[1]:
        raise ValueError("[START, STOP], to record batches START to STOP-1")
    return {"scheduler": list(value)}


def _state(text: str) -> dict[str, Any]:
    if text.lower() not in _STATES:
        raise ValueError("CPU, GPU or All")
    targets = _STATES[text.lower()]
    return {"targets": targets if isinstance(targets, str) else [*targets]}


def _sorted_key(text: str) -> dict[str, Any]:
    if text not in _ORDERS:
        raise ValueError("calls, total, max, min or ave")
    return {"sorted_by": _ORDERS[text]}


def _tracer_option(text: str) -> dict[str, Any]:
    if text not in ("Default", "OpDetail", "AllOpDetail"):
        raise ValueError("Default, OpDetail or AllOpDetail")
    return {"op_detail": text != "Default"}


def _switch(name: str) -> Callable[[str], dict[str, Any]]:
    def read(text: str) -> dict[str, Any]:
        if text.lower() not in (*_TRUE, *_FALSE):
            raise ValueError("True or False")
        return {name: text.lower() in _TRUE}

    return read


_READERS: Mapping[str, Callable[[str], dict[str, Any]]] = {
    "batch_range": _batch_range,
    "state": _state,
    "sorted_key": _sorted_key,
    "tracer_option": _tracer_option,
    "profile_path": lambda text: {"profiler_log": text},
    "exit_on_finished": _switch("stop_training"),
    "timer_only": _switch("timer_only"),
}
