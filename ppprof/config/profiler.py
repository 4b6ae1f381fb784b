"""The ``Profiler`` block: what to record, when, on which ranks, and how to show it."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Optional, Union, get_args

from ppprof.config.profiler_options import read_options
from ppprof.config.validation import Problems, knob, read_block
from ppprof.config.yaml_source import Key, Source
from ppprof.errors import ConfigError, UsageError
from ppprof.paths import is_remote
from ppprof.topology import AXES, RankSelector, Topology

VIEWS = ("device", "overview", "model", "dist", "op", "kernel", "memcpy", "udf", "mem")
"""The nine tables, in the order in which they print."""

SortKey = Literal[
    "auto",
    "cpu_total",
    "cpu_avg",
    "cpu_max",
    "cpu_min",
    "gpu_total",
    "gpu_avg",
    "gpu_max",
    "gpu_min",
]
TimeUnit = Literal["s", "ms", "us", "ns"]
TraceFormat = Literal["json", "json.gz", "pb"]
Target = Literal["cpu", "gpu", "xpu", "custom_device"]


@dataclass(frozen=True)
class WindowSchedule:
    """Windows that repeat, as ``paddle.profiler.make_scheduler`` counts them."""

    STRICT: ClassVar[bool] = True

    closed: int = knob(0, minimum=0)
    """Steps before each window in which nothing happens."""
    ready: int = knob(0, minimum=0)
    """Steps after those in which the tracers warm up and nothing is kept."""
    record: int = knob(0, minimum=1)
    """Steps of a window."""
    repeat: int = knob(0, minimum=0)
    """How many windows; 0 for as many as the run has room for."""
    skip_first: int = knob(0, minimum=0)
    """Steps to leave out before all this begins."""


@dataclass(frozen=True)
class SummaryToggles:
    """Which tables print when ``detailed`` is False."""

    STRICT: ClassVar[bool] = True

    overview: bool = True
    """Time by type of event."""
    model: bool = True
    """Steps and what they are made of: data loading, forward, backward, optimizer."""
    kernel: bool = True
    """GPU kernels by name."""
    op: bool = True
    """Operators by name, with what they called and launched."""
    device: bool = False
    """How busy CPU and GPUs were."""
    dist: bool = False
    """Communication, computation and their overlap."""
    mem: bool = False
    """Allocations and frees by who made them."""
    memcpy: bool = False
    """User-defined spans that copy or set memory."""
    udf: bool = False
    """Spans of your own (``paddle.profiler.RecordEvent``)."""


@dataclass(frozen=True)
class SlowStep:
    """When a step is so slow that the next ones are recorded; one number is ``times``."""

    STRICT: ClassVar[bool] = True

    times: float = knob(2.0, above=1)
    """A step is slow that takes more than so many times the running median."""
    cool_down: int = knob(100, minimum=0)
    """Steps after a triggered window in which a slow step opens none; the job's, not a rank's."""
    max_windows: int = knob(5, minimum=1)
    """Windows that slow steps may leave in a run."""
    keep: Literal["slow", "all"] = "slow"
    """``slow`` deletes a window whose own steps turned out not to be slow, ahead of its export;
    all keeps every window."""


@dataclass(frozen=True)
class TriggerConfig:
    """Windows that open on demand; True is all of it at its defaults."""

    STRICT: ClassVar[bool] = True

    file: bool = True
    """Take requests of ``ppprof trigger RUN``, or of ``touch RUN/trigger/request``: looked for by
    rank 0, in its own run directory."""
    slow_step: Optional[SlowStep] = None
    """Record what follows a slow step; a number is ``times``."""
    steps: int = knob(4, minimum=1, maximum=10_000)
    """Steps of a triggered window, where the request does not say."""
    ranks: Any = "all"
    """Which of the ranks that record take part, where the request does not say; as ``ranks``."""


@dataclass(frozen=True)
class ProfilerConfig:
    """The ``Profiler`` block."""

    STRICT: ClassVar[bool] = True

    enable: bool = False
    """Attach the profiler; everything else waits for this."""
    scheduler: Union[tuple[int, int], WindowSchedule, None] = None
    """``[start, stop]`` records steps start to stop-1; a mapping ``closed, ready, record, repeat,
    skip_first`` records windows; null records everything, or with a ``trigger`` only what that
    opens."""
    trigger: Optional[TriggerConfig] = None
    """Windows that open on demand, beside those of the ``scheduler``."""
    profiler_log: str = "profiler_log"
    """Run directory."""
    detailed: bool = False
    """Print every table."""
    record_shapes: bool = True
    """Operator input shapes, inside windows only (Paddle leaves them empty in dygraph)."""
    profile_memory: bool = True
    """Allocations and frees, inside windows only."""
    summary: SummaryToggles = field(default_factory=SummaryToggles)
    """Which tables, when ``detailed`` is False."""
    timer_only: bool = False
    """Only reader cost, batch cost and ips: the baseline, nearly free; no trace."""
    ranks: Any = "all"
    """Which ranks record: ``all``, ``"0,8-15"``, a list, or coordinates such as
    ``{dp: 0, mp: 0, pp: all}``: one rank for each pipeline stage."""
    print_ranks: Any = 0
    """Which of them print tables; the same forms."""
    sorted_by: SortKey = "auto"
    """How operators, kernels and spans sort; auto is gpu_total where there are device events, else
    cpu_total. Paddle's spellings (CPUTotal) are understood."""
    time_unit: TimeUnit = "ms"
    """Unit of the printed times."""
    op_detail: bool = True
    """Below each operator what it called and launched."""
    thread_sep: bool = False
    """Operators and spans thread by thread."""
    row_limit: int = knob(100, minimum=1)
    """Rows of a printed table at the most; the tables as data always hold all."""
    formats: tuple[TraceFormat, ...] = ("json",)
    """Formats of the trace; ``pb`` keeps Paddle's own, which is smaller."""
    with_flops: bool = False
    """Print Paddle's FLOPs by layer at the end of a window."""
    emit_nvtx: bool = False
    """NVTX ranges, for Nsight Systems."""
    targets: Union[Literal["auto"], tuple[Target, ...]] = "auto"
    """What to trace; auto is all that this build and machine have."""
    stop_training: bool = False
    """End the training cleanly once the last window of the ``scheduler`` has closed."""
    background: bool = True
    """Make tables and traces in a process of low priority while the training goes on; False: wait
    for that process at the end of each window. For debugging: other ranks wait too."""
    max_trace_mb: Optional[float] = knob(None, above=0)
    """Most that a rank's traces of a run may take on the disk, in MB of 10^6 bytes: a window that
    comes close is closed early on that rank, and what still does not fit stays unwritten. How
    large a first window gets is estimated by the memory that it takes: it may go over a little."""
    on_window_end: Union[str, tuple[str, ...], None] = None
    """A command to run on each recording rank once the files of a window are complete, with their
    names after its own arguments: a list, or text that is split as a shell would. Without a shell."""
    visualdl_scalars: bool = False
    """Loss, ips, tokens/s, reader cost and memory of every step in VisualDL's log format, for the
    page that shows the traces; of the ranks that print. Needs ``pip install 'ppprof[view]'``."""
    profiler_options: Optional[str] = None
    """All of this as PaddleClas, PaddleDetection and PaddleOCR say it: ``batch_range=[50, 60];
    profile_path=log``. Turns the profiler on; keys that stand beside it count more."""

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> ProfilerConfig:
        """The block from plain values, as `to_mapping` gives them.

        Raises:
            ConfigError: with every problem at once.
        """
        report = Problems(Source(dict(values), path="Profiler"))
        config = read_profiler(values, (), report)
        if report.problems:
            raise ConfigError(report.problems)
        return config

    def to_mapping(self) -> dict[str, Any]:
        """Plain values that JSON can hold; ranks stay as they were written."""
        values = dataclasses.asdict(self)
        if isinstance(self.scheduler, tuple):
            values["scheduler"] = list(self.scheduler)
        values["formats"] = list(self.formats)
        if self.targets != "auto":
            values["targets"] = list(self.targets)
        if isinstance(self.on_window_end, tuple):
            values["on_window_end"] = list(self.on_window_end)
        return values

    @property
    def command(self) -> tuple[str, ...]:
        """``on_window_end`` in words; none where there is no command.

        >>> ProfilerConfig(on_window_end="cp --target '/mnt/my traces'").command
        ('cp', '--target', '/mnt/my traces')
        """
        given = self.on_window_end
        return tuple(shlex.split(given)) if isinstance(given, str) else given or ()

    def views(self) -> tuple[str, ...]:
        """The selected tables, in the order of `VIEWS`."""
        return tuple(view for view in VIEWS if self.detailed or getattr(self.summary, view))


def read_profiler(values: Any, key: Key, report: Problems) -> ProfilerConfig:
    """The block, with what its types alone cannot say checked as well."""
    if isinstance(values, Mapping):
        values = _with_options(values, key, report)
        schedule = values.pop("scheduler", None)
        trigger = _trigger(values.pop("trigger", None), (*key, "trigger"), report)
        sort_key = values.get("sorted_by")
        if isinstance(sort_key, str):
            values["sorted_by"] = _PADDLE_SORT_KEYS.get(sort_key, sort_key)
        config = read_block(ProfilerConfig, values, key, report)
        config = dataclasses.replace(
            config, scheduler=_schedule(schedule, (*key, "scheduler"), report), trigger=trigger
        )
        _check_command(config, (*key, "on_window_end"), report)
        if not config.formats:
            known = ", ".join(get_args(TraceFormat))
            report.problem((*key, "formats"), f"[]: expected at least one of {known}")
        if is_remote(config.profiler_log):
            message = (
                "a capture writes to a disk; expected a directory that this machine has, whose "
                "files can be copied to a store later and read there"
            )
            report.problem((*key, "profiler_log"), f"{config.profiler_log}: {message}")
        for name in ("ranks", "print_ranks"):
            _check_selector(getattr(config, name), (*key, name), report)
        _warn_of_no_effect(values, schedule, config, key, report)
        return config
    return read_block(ProfilerConfig, values, key, report)


def _with_options(values: Mapping[str, Any], key: Key, report: Problems) -> dict[str, Any]:
    """The block with the keys that its ``profiler_options`` stand for."""
    options = values.get("profiler_options")
    if options is None:
        return dict(values)
    meant, problems = read_options(options)
    for problem in problems:
        report.problem((*key, "profiler_options"), problem)
    if values.get("enable") is False:
        report.warn((*key, "profiler_options"), "has no effect, because enable is False")
    given = {name: value for name, value in values.items() if value is not None}
    return {**meant, **given, "profiler_options": str(options)}


def check_ranks(config: ProfilerConfig, topology: Topology, report: Problems) -> None:
    """Notes rank selectors that name no rank of the grid, or none that records."""
    for key, selector in _selectors(config):
        _check_ranks_of(config, key, selector, topology, report)


def check_rank_numbers(config: ProfilerConfig, world_size: int, report: Problems) -> None:
    """The same where only the number of ranks is known: says nothing of coordinates."""
    topology = Topology.of(dp=world_size)
    for key, selector in _selectors(config):
        if not isinstance(selector, Mapping) and not isinstance(config.ranks, Mapping):
            _check_ranks_of(config, key, selector, topology, report)


def _selectors(config: ProfilerConfig) -> list[tuple[Key, RankSelector]]:
    found: list[tuple[Key, RankSelector]] = [
        (("ranks",), config.ranks),
        (("print_ranks",), config.print_ranks),
    ]
    if config.trigger is not None:
        found.append((("trigger", "ranks"), config.trigger.ranks))
    return found


def _check_ranks_of(
    config: ProfilerConfig, key: Key, selector: RankSelector, topology: Topology, report: Problems
) -> None:
    try:
        chosen = topology.select(selector)
        if key[0] == "trigger" and not chosen & topology.select(config.ranks):
            report.problem(("Profiler", *key), f"{selector!r}: none of them is in ranks")
    except UsageError as error:
        report.problem(("Profiler", *key), str(error))


_RANGES = re.compile(r"\s*\d+(-\d+)?\s*(,\s*\d+(-\d+)?\s*)*")
_SELECTORS = (
    'all, a rank, a list of ranks, "0,8-15", or coordinates such as {dp: 0, mp: 0, pp: all} '
    f"on the axes {', '.join(AXES)}"
)
_PADDLE_SORT_KEYS = {
    f"{clock.upper()}{stat.capitalize()}": f"{clock}_{stat}"
    for clock in ("cpu", "gpu")
    for stat in ("total", "avg", "max", "min")
}


def _schedule(value: Any, key: Key, report: Problems) -> tuple[int, int] | WindowSchedule | None:
    if value is None:
        return None
    if isinstance(value, Mapping):
        schedule = read_block(WindowSchedule, value, key, report)
        if schedule.record < 1 and value.get("record") is None:
            report.problem((*key, "record"), "missing; expected the steps of a window, at least 1")
        return schedule
    is_pair = isinstance(value, (list, tuple)) and len(value) == 2
    if not is_pair or not all(type(step) is int for step in value):
        expected = "expected [start, stop], a mapping with record, or null"
        report.problem(key, f"{value!r}: {expected}")
        return None
    start, stop = value
    if start < 0:
        report.problem(key, f"{value!r}: start {start} is below 0, the first step")
    elif stop <= start:
        message = f"stop {stop} is not after start {start}; no step would be recorded"
        report.problem(key, f"{value!r}: {message}")
    return start, stop


def _trigger(value: Any, key: Key, report: Problems) -> TriggerConfig | None:
    if value is None or value is False:
        return None
    if value is True:
        return TriggerConfig()
    if not isinstance(value, Mapping):
        expected = "expected True, or a mapping of file, slow_step, steps, ranks"
        report.problem(key, f"{value!r}: {expected}")
        return None
    values = dict(value)
    slow_step = values.get("slow_step")
    if isinstance(slow_step, bool):
        values["slow_step"] = {} if slow_step else None
    elif isinstance(slow_step, (int, float)):
        values["slow_step"] = {"times": slow_step}
    trigger = read_block(TriggerConfig, values, key, report)
    _check_selector(trigger.ranks, (*key, "ranks"), report)
    if not trigger.file and trigger.slow_step is None:
        message = "file is False and slow_step blank: nothing could open a window"
        report.problem(key, f"{message}; expected one of them")
    return trigger


def _check_command(config: ProfilerConfig, key: Key, report: Problems) -> None:
    if config.on_window_end is None:
        return
    try:
        command = config.command
    except ValueError as error:  # a quote that is not closed
        report.problem(key, f"{config.on_window_end!r}: {str(error).lower()}")
        return
    if not command or not command[0]:
        report.problem(key, "empty; expected a command")


def _check_selector(value: Any, key: Key, report: Problems) -> None:
    """Notes what is no rank selector; whether the ranks exist depends on the grid."""
    if isinstance(value, Mapping):
        unknown = sorted(set(value) - set(AXES))
        fits = not unknown and all(at == "all" or _is_index(at) for at in value.values())
    elif isinstance(value, str):
        fits = value == "all" or _RANGES.fullmatch(value) is not None
    else:
        fits = all(map(_is_index, value if isinstance(value, (list, tuple)) else [value]))
    if not fits:
        report.problem(key, f"{value!r}: expected {_SELECTORS}")


def _is_index(value: Any) -> bool:
    return type(value) is int and value >= 0


def _warn_of_no_effect(
    values: Mapping[str, Any], schedule: Any, config: ProfilerConfig, key: Key, report: Problems
) -> None:
    """Settings that another setting leaves without effect."""
    if not config.enable:
        return
    idle = []
    if config.timer_only:
        plain = ProfilerConfig()  # what says the same as its default asks for nothing
        names = (
            *("summary", "detailed", "formats", "with_flops", "background"),
            *("trigger", "max_trace_mb", "on_window_end"),
        )
        idle = [name for name in names if getattr(config, name) != getattr(plain, name)]
        # With stop_training it says when the training ends.
        idle += ["scheduler"] if schedule is not None and not config.stop_training else []
        because = "timer_only is True"
    elif config.detailed and "summary" in values:
        idle, because = ["summary"], "detailed is True"
    for name in idle:
        report.warn((*key, name), f"has no effect, because {because}")
    if config.stop_training and config.scheduler is None:
        message = "has no effect, because scheduler is null: " + (
            "the window ends with the training" if config.trigger is None else "no window is last"
        )
        report.warn((*key, "stop_training"), message)
