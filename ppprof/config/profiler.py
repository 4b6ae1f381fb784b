"""The ``Profiler`` block: what to record, in which steps, on which ranks, and what to show."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Optional, Union, get_args

from ppprof.choices import (
    MOST_TRIGGERED_STEPS,
    PADDLE_SORT_KEYS,
    VIEWS,
    SortKey,
    TimeUnit,
    TraceFormat,
)
from ppprof.config.profiler_options import options_text, read_options
from ppprof.config.validation import Problems, knob, read_block
from ppprof.config.yaml_source import ConfigTree, Key
from ppprof.errors import ConfigError, UsageError
from ppprof.paths import is_remote
from ppprof.topology import AXES, RankSelector, Topology, is_own_axis

Target = Literal["cpu", "gpu", "xpu", "custom_device"]


@dataclass(frozen=True)
class WindowSchedule:
    """Repeating windows, as ``paddle.profiler.make_scheduler`` counts them."""

    STRICT: ClassVar[bool] = True

    closed: int = knob(0, minimum=0)
    """Idle steps before each window."""
    ready: int = knob(0, minimum=0)
    """Warm-up steps after them, whose data is dropped."""
    record: int = knob(0, minimum=1)
    """Steps of a window."""
    repeat: int = knob(0, minimum=0)
    """Number of windows; 0 repeats windows until the run ends."""
    skip_first: int = knob(0, minimum=0)
    """Steps to skip before the first cycle of ``closed``, ``ready`` and ``record`` steps."""


@dataclass(frozen=True)
class SummaryToggles:
    """The tables to print when ``detailed`` is False."""

    STRICT: ClassVar[bool] = True

    overview: bool = True
    """Time by type of event."""
    model: bool = True
    """Steps by phase: data loading, forward, backward, optimizer."""
    kernel: bool = True
    """GPU kernels by name."""
    op: bool = True
    """Operators by name, with the operators they call and the kernels they launch."""
    device: bool = False
    """Utilization of CPU and GPUs."""
    dist: bool = False
    """Communication, computation and their overlap."""
    mem: bool = False
    """Allocations and frees, by the operator or span that made them."""
    memcpy: bool = False
    """User-defined spans that copy or set memory, by name."""
    udf: bool = False
    """Other user-defined spans (``paddle.profiler.RecordEvent``), by name."""


@dataclass(frozen=True)
class SlowStep:
    """Open a window after a slow step; a number instead of a mapping sets ``times``."""

    STRICT: ClassVar[bool] = True

    times: float = knob(2.0, above=1)
    """A slow step takes more than this many times the running median."""
    cool_down: int = knob(100, minimum=0)
    """Steps after a triggered window in which slow steps open none; counted for all ranks
    together."""
    max_windows: int = knob(5, minimum=1)
    """Most windows of a run to keep because of slow steps."""
    keep: Literal["slow", "all"] = "slow"
    """``slow`` deletes such a window, before its export, if no step in it is slow."""


@dataclass(frozen=True)
class TriggerConfig:
    """Windows that open on demand; True instead of a mapping uses the defaults."""

    STRICT: ClassVar[bool] = True

    file: bool = True
    """Accept requests: ``ppprof trigger RUN``, or a file RUN/trigger/request, in the run directory
    of rank 0."""
    slow_step: Optional[SlowStep] = None
    """Record the steps after a slow one. True for the defaults; a number sets ``times``; blank or
    False for no such windows."""
    slow_rank: bool = False
    """Record a rank that has become slower than those with the same work, and up to seven of these; keep the
    window if it was slow in it, too. Needs ``flight_recorder``; not on a device."""
    settled: Union[int, Literal["auto"], None] = knob(None, minimum=1, maximum=MOST_TRIGGERED_STEPS)
    """Record a window of so many steps once, as soon as five steps in a row take about as long, at
    step 20 at the latest. ``auto``: 10 steps, or as many as take a second, at most 100. Without a
    ``scheduler``, the first steps are recorded too, in case the training ends before."""
    steps: int = knob(4, minimum=1, maximum=MOST_TRIGGERED_STEPS)
    """Steps of any other triggered window, unless the request gives a number."""
    ranks: Any = "all"
    """Ranks that record a triggered window, unless the request names some; they must be among
    ``ranks``."""


@dataclass(frozen=True)
class ProfilerConfig:
    """The ``Profiler`` block."""

    STRICT: ClassVar[bool] = True

    enable: bool = False
    """Attach the profiler to the training. If False, all other keys have no effect."""
    scheduler: Union[tuple[int, int], WindowSchedule, None] = None
    """``[start, stop]`` records steps start to stop-1; a mapping records repeating windows. Blank:
    the windows of the ``trigger``; without one every step, up to ``max_trace_mb``."""
    trigger: Optional[TriggerConfig] = None
    """Windows on demand, besides those of the ``scheduler``; True for the defaults. Blank or False:
    ``ppprof trigger`` cannot record the job."""
    profiler_log: str = "profiler_log"
    """Log directory, relative to the training's working directory, on a disk or a mounted file
    system; stores such as ``s3://`` are refused. Later runs go to ``run_002``, ``run_003``... in
    it."""
    detailed: bool = False
    """Print all nine tables."""
    record_shapes: bool = True
    """Record shapes and dtypes of the inputs of operators that Python calls, and of their
    gradients, inside windows. Operators of ``to_static`` programs have none."""
    profile_memory: bool = True
    """Record allocations and frees, inside windows. It stops at 256 MB, which Paddle never frees,
    or after 10,000 operators without ``step()``."""
    python_stacks: Union[bool, float, Literal["auto"]] = knob("auto", above=0, maximum=1000)
    """Sample the Python stacks of all threads and of the DataLoader's workers, inside windows. ``auto``:
    as often as costs less than 1% of the time; True: 1,000 times a second; a number: this many times a second.
    Unless False, the stack is also looked at in steps outside windows that take long."""
    source: bool = True
    """Keep the source lines that take the most time, with their neighbours, of files below the
    working directory."""
    flight_recorder: bool = True
    """Note the last 2,048 communication operations of each rank, at any time, and answer when
    ``ppprof hang --stacks`` asks for stacks."""
    hang_after: Optional[float] = knob(None, above=0, maximum=1_000_000)
    """Seconds without the end of a step after which the stacks of all threads are written, for
    ``ppprof hang``; blank for never."""
    hang_exit_code: Optional[int] = knob(None, minimum=1, maximum=255)
    """End each rank with this exit code, such as 75, 2 seconds after ``hang_after``, outside
    ``paused()``. Blank lets the job hang."""
    summary: SummaryToggles = field(default_factory=SummaryToggles)
    """The tables to print when ``detailed`` is False."""
    brief: bool = False
    """Print a verdict and the largest parts of a step instead of the tables. True for ``ppprof
    run`` without a config and without ``--tables``."""
    timer_only: bool = False
    """Measure only reader cost, batch cost and ips, at nearly no cost; write no trace."""
    ranks: Any = "all"
    """Ranks that record: ``all``, a rank, ``"0,8-15"``, a list, or coordinates: ``{dp: 0, mp: 0,
    sharding: 0, sep: 0, pp: all}`` is one rank of each pipeline stage. A missing axis means all of
    its positions."""
    print_ranks: Any = 0
    """Ranks that print tables, if they record; the same forms as ``ranks``."""
    sorted_by: SortKey = "auto"
    """Sort key of operators, kernels and spans; Paddle's ``CPUTotal`` works too. ``auto`` is
    ``gpu_total`` if there are device events, else ``cpu_total``."""
    time_unit: TimeUnit = "ms"
    """Unit of the printed times."""
    op_detail: bool = True
    """Below each operator, print the operators that it calls and the kernels that it launches."""
    thread_sep: bool = False
    """Print operators and spans separately for each thread."""
    row_limit: int = knob(20, minimum=1)
    """Most rows of a printed table; the tables in ``summary/`` have all."""
    formats: tuple[TraceFormat, ...] = ("json",)
    """Formats of the traces. ``pb`` is Paddle's own format, which is smaller than ``json``."""
    with_flops: bool = False
    """Print a table of FLOPs and times by layer; needs ``record_shapes``."""
    emit_nvtx: bool = False
    """Emit NVTX ranges, for Nsight Systems."""
    targets: Union[Literal["auto"], tuple[Target, ...]] = "auto"
    """What to trace. ``auto``: the host, and the training's device unless its profiler does not
    work or writes its own files. A listed device is traced even if it writes files."""
    sync_steps: bool = False
    """Wait for the device at the end of each recorded step, which can slow these steps. No effect
    on a CPU."""
    stop_training: bool = False
    """End the training cleanly once the last window of the ``scheduler`` has closed."""
    background: bool = True
    """Write tables and traces in a low-priority process beside the training. False, for debugging:
    the training waits for it."""
    max_trace_mb: Optional[float] = knob(None, above=0)
    """Disk limit for the traces of one rank and run, in MB of 10^6 bytes; the first window may
    exceed it a little. Blank: no limit if the ``scheduler`` has a last window, or is blank beside a
    ``trigger``; else 10 GB or a tenth of the free space, whichever is less, divided by the recording
    ranks."""
    on_window_end: Union[str, tuple[str, ...], None] = None
    """A command that each recording rank runs when the files of a window are complete, with their
    names as last arguments. A list of words, or text that is split as by a shell; no shell is
    started."""
    visualdl_scalars: bool = False
    """Write loss, ips, tokens/s, reader cost and memory of every step for VisualDL, on the ranks of
    ``print_ranks``. Needs ``pip install 'ppprof[view]'``."""
    export: Optional[Literal["prometheus", "otlp"]] = None
    """``prometheus``: write speed, waits, memory and loss of each rank to ``metrics/`` of the log
    directory every 10 seconds, for node_exporter, until the training ends. ``otlp``: send them to an OpenTelemetry
    collector (``OTEL_EXPORTER_OTLP_ENDPOINT``); needs ``pip install 'ppprof[otlp]'``."""
    profiler_options: Optional[str] = None
    """The option string of PaddleClas, PaddleDetection and PaddleOCR: ``batch_range=[50, 60];
    profile_path=log``. It enables the profiler; other keys take precedence."""

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> ProfilerConfig:
        """Return the ``Profiler`` block with these values, the inverse of `to_mapping`.

        Missing keys get their defaults. Warnings are dropped.

        Raises:
            ConfigError: holds every problem.
        """
        problems = Problems(ConfigTree(dict(values), path="Profiler"))
        config = read_profiler(values, (), problems)
        if problems.errors:
            raise ConfigError(problems.errors)
        return config

    def to_mapping(self) -> dict[str, Any]:
        """Return the block as plain values that JSON can hold, with all defaults.

        Rank selectors stay as written.
        """
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in dataclasses.asdict(self).items()
        }

    @property
    def command(self) -> tuple[str, ...]:
        """``on_window_end`` split into words; empty if there is no command.

        Raises:
            ValueError: a quote is not closed. A block from `read_profiler` without errors has none.

        >>> ProfilerConfig(on_window_end="cp --target '/mnt/my traces'").command
        ('cp', '--target', '/mnt/my traces')
        """
        command = self.on_window_end
        return tuple(shlex.split(command)) if isinstance(command, str) else command or ()

    def views(self) -> tuple[str, ...]:
        """Return the names of the tables to print: some of `VIEWS`, in their order, and ``layer``.

        All of `VIEWS` if ``detailed`` is True, else those that ``summary`` selects; ``layer`` if
        ``with_flops`` is True.
        """
        chosen = tuple(view for view in VIEWS if self.detailed or getattr(self.summary, view))
        return (*chosen, "layer") if self.with_flops else chosen


def read_profiler(values: Any, key: Key, problems: Problems) -> ProfilerConfig:
    """Return the ``Profiler`` block from plain values, and check rules that types do not express.

    Values that are not of the field's type get the default and add an error.

    Args:
        values: a mapping; None for a missing block.
        key: the path of the block in the config: ``("Profiler",)``, or () for a bare block.
        problems: gets the errors and warnings.
    """
    if isinstance(values, Mapping):
        values = _expand_options(values, key, problems)
        schedule = values.pop("scheduler", None)
        trigger = _read_trigger(values.pop("trigger", None), (*key, "trigger"), problems)
        sort_key = values.get("sorted_by")
        if isinstance(sort_key, str):
            values["sorted_by"] = PADDLE_SORT_KEYS.get(sort_key, sort_key)
        config = read_block(ProfilerConfig, values, key, problems)
        config = dataclasses.replace(
            config,
            scheduler=_read_schedule(schedule, (*key, "scheduler"), problems),
            trigger=trigger,
        )
        _check_command(config, (*key, "on_window_end"), problems)
        if not config.formats:
            formats = ", ".join(get_args(TraceFormat))
            problems.add((*key, "formats"), f"[]: expected at least one of {formats}")
        if is_remote(config.profiler_log):
            message = (
                "a capture can write only to local disks; expected a directory of this machine "
                "(copy its files to a store afterwards and read them there)"
            )
            problems.add((*key, "profiler_log"), f"{config.profiler_log}: {message}")
        for name in ("ranks", "print_ranks"):
            _check_selector(getattr(config, name), (*key, name), problems)
        _warn_about_ignored_keys(values, config, key, problems)
        return config
    return read_block(ProfilerConfig, values, key, problems)


def _expand_options(values: Mapping[str, Any], key: Key, problems: Problems) -> dict[str, Any]:
    """Return the block with ``profiler_options`` translated to keys of the block.

    Keys that the block itself sets, except to null, take precedence. Adds an error for each invalid
    option.
    """
    options = values.get("profiler_options")
    if options is None:
        return dict(values)
    equivalent, messages = read_options(options)
    for message in messages:
        problems.add((*key, "profiler_options"), message)
    if values.get("enable") is False:
        problems.warn((*key, "profiler_options"), "has no effect, because enable is False")
    explicit = {name: value for name, value in values.items() if value is not None}
    return {**equivalent, **explicit, "profiler_options": options_text(options)}


def check_ranks(
    config: ProfilerConfig, topology: Topology, problems: Problems, *, has_axes: bool = True
) -> None:
    """Add an error for each rank selector with a rank, position or axis outside the topology.

    The rank selectors are ``ranks``, ``print_ranks`` and ``trigger.ranks``. ``trigger.ranks`` must
    also select at least one rank that ``ranks`` selects.

    Args:
        config: the block; its selectors have a valid form.
        topology: the ranks of the job and their coordinates.
        problems: gets the errors.
        has_axes: whether the coordinates are known. If not, selectors with coordinates are not
            checked. If ``ranks`` has coordinates, no selector is checked then.
    """
    selectors: list[tuple[Key, RankSelector]] = [
        (("ranks",), config.ranks),
        (("print_ranks",), config.print_ranks),
    ]
    if config.trigger is not None:
        selectors.append((("trigger", "ranks"), config.trigger.ranks))
    for key, selector in selectors:
        if not has_axes and any(isinstance(each, Mapping) for each in (selector, config.ranks)):
            continue
        try:
            selected = topology.select(selector)
            if key[0] == "trigger" and not selected & topology.select(config.ranks):
                problems.add(("Profiler", *key), f"{selector!r}: none of them is in ranks")
        except UsageError as error:
            problems.add(("Profiler", *key), str(error))


_RANGES = re.compile(r"\s*\d+(-\d+)?\s*(,\s*\d+(-\d+)?\s*)*")
_SELECTORS = (
    'all, a rank, a list of ranks, "0,8-15", or coordinates such as {dp: 0, mp: 0, pp: all} '
    f"on the axes {', '.join(AXES)}"
)


def _read_schedule(
    value: Any, key: Key, problems: Problems
) -> tuple[int, int] | WindowSchedule | None:
    if value is None:
        return None
    if isinstance(value, Mapping):
        schedule = read_block(WindowSchedule, value, key, problems)
        if schedule.record < 1 and value.get("record") is None:
            message = "missing; expected the number of steps of a window, at least 1"
            problems.add((*key, "record"), message)
        return schedule
    is_pair = isinstance(value, (list, tuple)) and len(value) == 2
    if not is_pair or not all(type(step) is int for step in value):
        expected = "expected [start, stop], a mapping with record, or null"
        problems.add(key, f"{value!r}: {expected}")
        return None
    start, stop = value
    if start < 0:
        problems.add(key, f"{value!r}: start {start} is below 0, the first step")
    elif stop <= start:
        message = f"stop {stop} is not after start {start}; no step would be recorded"
        problems.add(key, f"{value!r}: {message}")
    return start, stop


def _read_trigger(value: Any, key: Key, problems: Problems) -> TriggerConfig | None:
    if value is None or value is False:
        return None
    if value is True:
        return TriggerConfig()
    if not isinstance(value, Mapping):
        expected = (
            "expected True, or a mapping of file, slow_step, slow_rank, settled, steps, ranks"
        )
        problems.add(key, f"{value!r}: {expected}")
        return None
    values = dict(value)
    slow_step = values.get("slow_step")
    if isinstance(slow_step, bool):
        values["slow_step"] = {} if slow_step else None
    elif isinstance(slow_step, (int, float)):
        values["slow_step"] = {"times": slow_step}
    trigger = read_block(TriggerConfig, values, key, problems)
    _check_selector(trigger.ranks, (*key, "ranks"), problems)
    opens = (trigger.file, trigger.slow_step, trigger.slow_rank, trigger.settled)
    if not any(opens):
        message = "file is False, slow_step, slow_rank and settled are blank, so no window could ever open"
        problems.add(key, f"{message}; expected at least one of them")
    return trigger


def _check_command(config: ProfilerConfig, key: Key, problems: Problems) -> None:
    if config.on_window_end is None:
        return
    try:
        command = config.command
    except ValueError as error:  # a quote that is not closed
        problems.add(key, f"{config.on_window_end!r}: {str(error).lower()}")
        return
    if not command or not command[0]:
        problems.add(key, "empty; expected a command")


def _check_selector(value: Any, key: Key, problems: Problems) -> None:
    """Add an error if ``value`` is no rank selector; `check_ranks` looks whether its ranks exist."""
    if isinstance(value, Mapping):
        positions = value.values()
        are_axes = all(isinstance(axis, str) and is_own_axis(axis) for axis in value)
        is_valid = are_axes and all(
            position == "all" or _is_index(position) for position in positions
        )
    elif isinstance(value, str):
        is_valid = value == "all" or _RANGES.fullmatch(value) is not None
    else:
        is_valid = all(map(_is_index, value if isinstance(value, (list, tuple)) else [value]))
    if not is_valid:
        problems.add(key, f"{value!r}: expected {_SELECTORS}")


def _is_index(value: Any) -> bool:
    return type(value) is int and value >= 0


def _warn_about_ignored_keys(
    values: Mapping[str, Any], config: ProfilerConfig, key: Key, problems: Problems
) -> None:
    """Add a warning for each key that has no effect because of the value of another key."""
    if not config.enable:
        return
    ignored = []
    if config.timer_only:
        plain = ProfilerConfig()  # keys set to their default need no warning
        names = (
            *("summary", "detailed", "brief", "formats", "with_flops", "background"),
            *("trigger", "max_trace_mb", "on_window_end"),
        )
        # No warning for `scheduler`: nearly every config has one, and -o Profiler.timer_only=True is
        # how the same job is measured without its windows.
        ignored = [name for name in names if getattr(config, name) != getattr(plain, name)]
        reason = "timer_only is True"
    elif config.detailed and "summary" in values:
        ignored, reason = ["summary"], "detailed is True"
    for name in ignored:
        problems.warn((*key, name), f"has no effect, because {reason}")
    if config.hang_exit_code is not None and config.hang_after is None:
        problems.warn((*key, "hang_exit_code"), "has no effect, because hang_after is blank")
    if config.trigger is not None and config.trigger.slow_rank and not config.flight_recorder:
        problems.warn(
            (*key, "trigger", "slow_rank"), "has no effect, because flight_recorder is False"
        )
    if config.stop_training and config.scheduler is None:
        message = "has no effect, because scheduler is null: " + (
            "the window ends with the training"
            if config.trigger is None
            else "a trigger has no last window"
        )
        problems.warn((*key, "stop_training"), message)
    is_endless = isinstance(config.scheduler, WindowSchedule) and not config.scheduler.repeat
    if config.stop_training and is_endless:
        message = "has no effect, because scheduler.repeat is 0: there is no last window"
        problems.warn((*key, "stop_training"), message)
