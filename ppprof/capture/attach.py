"""`attach`: from the ``Profiler`` block to the session that a training loop holds."""

from __future__ import annotations

import errno
import logging
import math
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from os import PathLike, fspath
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ppprof import rundir
from ppprof.capture import attached, process
from ppprof.capture.device import compute_device_name
from ppprof.capture.output import log_to_stderr, reason
from ppprof.capture.parts import (
    DevicePart,
    LivenessPart,
    Part,
    RecordingPart,
    StepsPart,
    TriggersPart,
)
from ppprof.capture.postprocess import PostProcessor
from ppprof.capture.process import above_standard_streams
from ppprof.capture.ranks.job import Job, agreement, job_store
from ppprof.capture.recording.disk_budget import DiskBudget, default_bytes
from ppprof.capture.recording.store import WindowStore
from ppprof.capture.recording.user_files import UserFiles
from ppprof.capture.results import Results, TablesPart
from ppprof.capture.schedule import Schedule
from ppprof.capture.session import NoopSession, ProfilerSession, RecordingSession
from ppprof.capture.signals import pass_interruption
from ppprof.capture.step_states import StepStates
from ppprof.capture.steps.device_timer import DeviceEvents, DeviceStepTimer
from ppprof.capture.steps.lasting_cost import LastingCost
from ppprof.capture.steps.metrics import Metrics, MetricsFile, remove_ended
from ppprof.capture.steps.perf_summary import PerfSummary
from ppprof.capture.steps.slow_lines import SlowLines
from ppprof.capture.steps.step_log import StepLog, host_peak_allocated_bytes, memory_reader
from ppprof.capture.steps.timer import StepTimer
from ppprof.capture.steps.visualdl_scalars import Scalars
from ppprof.errors import NO_PADDLE, PpprofError, UsageError
from ppprof.rundir.liveness import LivenessRegistry
from ppprof.rundir.run_file import RunFile
from ppprof.units import MEGABYTE, format_bytes

if TYPE_CHECKING:
    from ppprof.capture.ranks.clock_sync import ClockSync
    from ppprof.capture.ranks.flight_recorder import FlightRecorder
    from ppprof.capture.ranks.triggers import Triggers
    from ppprof.capture.recording.observers import WindowObserver
    from ppprof.capture.recording.operator_calls import OperatorCallRecorder
    from ppprof.capture.recording.windows import Windows
    from ppprof.config import ProfilerConfig
    from ppprof.topology import Topology

log = logging.getLogger("ppprof")

_OF_SYSTEM = (OSError, RuntimeError)
"""Errors of the disk, the network and the job's store."""


SETTLED_WINDOW: Mapping[str, Any] = MappingProxyType(
    {"enable": True, "trigger": {"settled": "auto"}}
)
"""The block of `attach` without arguments."""


def attach(
    profiler: ProfilerConfig | Mapping[str, Any] | str | PathLike[str] | None = SETTLED_WINDOW,
    *,
    topology: Topology | None = None,
    config: Mapping[str, Any] | None = None,
    device_peak_flops: float | None = None,
    device_peak_gbps: float | None = None,
    first_step: int = 0,
) -> ProfilerSession:
    """Return the profiler session of a training loop.

    Call `attach` after ``fleet.init``, ``init_parallel_env`` or the first ``ProcessMesh``, on every rank. Ranks that are not
    in ``Profiler.ranks`` record no windows, but still write their step times::

        with ppprof.attach(cfg.Profiler) as prof:
            for batch in loader:
                train_step(batch)
                prof.step(num_samples=batch_size)

    Args:
        profiler: the ``Profiler`` block, typed or as a mapping (also of OmegaConf); or a whole config
            with this block; or the path of a YAML file with either. None means that profiling is
            off. Without this argument, one window of 10 steps or more (``trigger.settled: auto``) is
            recorded once step times have settled, at step 20 at the latest; of a training that ends
            before, up to 10 steps from step 1 on.
        topology: the degrees of all axes, and the coordinate of each rank. None means Fleet's
            topology if Fleet is initialised, else that of the ProcessMesh of all ranks, else data
            parallel over all ranks. A topology of
            another size than the job is ignored with a warning.
        config: the whole config, to be written into the manifest. None means ``profiler``, if that
            is a whole config.
        device_peak_flops: dense FLOP/s of one device in the data type of the training, for MFU; it
            is written into the manifest. None means ``Global.device_peak_flops`` of the config, else
            the peak for bf16 and fp16 if the device is known (`ppprof.hardware`), else no MFU.
        device_peak_gbps: bandwidth of one device's memory in GB/s, for the efficiency of operators;
            it is written into the manifest. None means ``Global.device_peak_gbps`` of the config, else the
            vendor's number if the device is known.
        first_step: number of the first step, the same on all ranks. A training that resumes from a
            checkpoint passes the number of steps that it has trained before, and its steps go on from
            there in all files. ``Profiler.scheduler`` counts from the first step: ``[10, 20]`` records ten
            steps of a resumed training, too.

    Returns:
        A context manager with ``step(num_samples, num_tokens, num_micro_batches, num_flops,
        loss)``, ``paused()``, ``should_stop`` and ``close()``. Its methods do nothing if there is
        no ``profiler``, if ``enable`` is False, or, with a warning, while an earlier session is
        open. If recording cannot be set up, a warning is logged and nothing is recorded, but
        ``should_stop`` still follows the schedule.

    Raises:
        ConfigError: the mapping or the file is not a valid ``Profiler`` block.
        UsageError: ``profiler`` is something else; ``ranks``, ``print_ranks`` or ``trigger.ranks``
            name ranks that the job does not have; ``device_peak_flops`` or ``device_peak_gbps`` is
            not a positive, finite number; or ``first_step`` is not a whole number from 0.

        Any exception that a signal handler of the training raises meanwhile is raised, too.
    """
    if profiler is None:
        return NoopSession()
    block, whole = _read_block(profiler)
    config = whole if config is None else config
    if not block.enable:
        return NoopSession()
    log_to_stderr()
    if attached.is_attached():
        log.warning(
            "attach() was called while an earlier session is open: the new session does nothing"
        )
        return NoopSession()
    device_peak_flops = _peak("device_peak_flops", device_peak_flops, config)
    device_peak_gbps = _peak("device_peak_gbps", device_peak_gbps, config)
    if isinstance(first_step, bool) or not isinstance(first_step, int) or first_step < 0:
        raise UsageError(f"first_step: {first_step!r}: expected a whole number from 0")
    try:
        if device_peak_flops is None:
            device_peak_flops = _device_peak_flops()
        manifest = {
            "profiler": block.to_mapping(),
            "config": config,
            "config_file": fspath(profiler) if isinstance(profiler, (str, PathLike)) else None,
            "device": _device(),
            "device_peak_flops": device_peak_flops,
            "device_peak_gbps": device_peak_gbps,
            "tf32": _uses_tf32(),
            "first_step": first_step,
        }
        with above_standard_streams(), ExitStack() as undo:
            session = _attach(block, topology, manifest, first_step, undo)
            undo.pop_all()
            return session
    except PpprofError:
        raise
    except Exception as error:  # an unknown environment or version of Paddle
        pass_interruption(error)
        why = reason(error)
        if isinstance(error, ModuleNotFoundError) and error.name == "paddle":
            why = NO_PADDLE
        log.warning(f"cannot attach: {why}; nothing is recorded, the training goes on")
        # Not `NoopSession`: all ranks have to stop at the step that ``stop_training`` asks for.
        return RecordingSession(
            StepStates(Schedule.of(block.scheduler, first_step=first_step)),
            stop_training=block.stop_training,
        )


def _attach(
    profiler: ProfilerConfig,
    topology: Topology | None,
    manifest: Mapping[str, Any],
    first_step: int,
    undo: ExitStack,
) -> RecordingSession:
    """Build the session of this rank: each object from finished ones, the session last.

    ::

        job -> run directory -> timer, flight recorder, triggers -> states: which steps are in a
            window -> lines of slow steps -> steps, store -> windows -> parts -> session

    The session calls its parts in this order, after each step and at its end: ``close`` of all, which
    saves an open window, then ``wait`` of all, which waits for tables and prints results. After a
    failure of the training, parts with data are closed first. A signal, which the session handles, calls
    ``rescue``. A part that fails ends the recording, and step times go on. StepsPart asks `SlowLines`, whose thread looks
    at the stack while a step takes long::

                         each step   between steps   close   wait   rescue
        DevicePart                   after step 0
        OutOfMemoryPart                              x
        LivenessPart                                 x              x
        TriggersPart     x                           x       x
        RecordingPart                x               x              x
        FlightRecorder   x                           x       (its methods are unwrapped after the windows')
        ClockSync                    window ends             x
        StepsPart        x           window ends     x              x
        TablesPart                                           x
        Results                                      x       x      x

    What runs by itself or wraps functions adds to ``undo`` what ends it, in case a later object fails.
    """
    process.keep_from_translation()
    job = Job.here(topology)
    profiler = job.resolved(profiler)
    recorded = job.topology.select(profiler.ranks)
    printing = job.topology.select(profiler.print_ranks)
    prints = job.rank in printing
    if profiler.trigger is not None:
        job.topology.select(profiler.trigger.ranks)  # raises for a rank that the job does not have
    key = agreement()
    shown = _run_directory(job, Path(profiler.profiler_log), manifest, key)
    run = shown and shown.absolute()  # the training may change its directory
    has_peers = job.topology.world_size > 1

    device_events = DeviceEvents.here()
    timer = StepTimer() if device_events is None else DeviceStepTimer(device_events)
    schedule = Schedule.of(profiler.scheduler, profiler.trigger is not None, first_step)
    liveness = out_of_memory = flight_recorder = clock_sync = triggers = None
    if run is not None:
        liveness = _liveness(job, run)
        out_of_memory = _out_of_memory(job, run)
        flight_recorder = _flight_recorder(profiler, job, run, timer.is_paused, first_step)
        if flight_recorder is not None:
            undo.callback(flight_recorder.release)
        if not profiler.timer_only:
            clock_sync = _clock_sync(job, run, key, recorded)
            triggers = _triggers(profiler, schedule, job, run, key, recorded)
    states = StepStates(schedule, triggers, profiler.timer_only)

    peak_flops = manifest["device_peak_flops"]
    summary = PerfSummary(peak_flops)
    slow_lines = None
    if run is not None and profiler.python_stacks is not False:
        with _without(job.rank, "the lines of slow steps will not be named", Exception):
            files = UserFiles(Path.cwd())
            slow_lines = SlowLines(files, timer.is_paused, keeps_source=profiler.source)
    steps = _steps(profiler, job, run, summary, printing, peak_flops, slow_lines)
    post_processor = store = windows = recording = tables = None
    if run is not None and job.rank in recorded and not profiler.timer_only:
        post_processor = PostProcessor(
            run, job.rank, prints, background=profiler.background, then=profiler.command
        )
        store = WindowStore(run, job.rank, job.topology, post_processor)
        windows = _windows(profiler, job, run, store, steps, prints, flight_recorder, schedule)
        recording = RecordingPart(states, windows, post_processor, triggers)
        tables = TablesPart(post_processor)
    on_demand = None
    if triggers is not None:
        saved_steps = store.saved_steps if store is not None else {}
        on_demand = TriggersPart(triggers, saved_steps, first_step)
    results = Results(
        job.rank,
        shown,
        states,
        summary,
        prints,
        viewed=next((fmt for fmt in profiler.formats if fmt != "pb"), None),
        clocks_of=run if clock_sync is not None else None,
        liveness=liveness,
        store=store if windows is not None else None,
        post_processor=post_processor,
        brief=profiler.brief,
        has_rings=has_peers and flight_recorder is not None,
        slow_lines=slow_lines,
    )

    parts: list[Part | None] = [
        *(DevicePart(_device), out_of_memory, liveness, on_demand, recording),
        *(flight_recorder, clock_sync, steps, tables, results),
    ]
    undo.callback(timer.close)
    timer.watch_readers()
    session = RecordingSession(
        states,
        [part for part in parts if part is not None],
        timer=timer,
        communication_ns=flight_recorder.take_communication_ns
        if has_peers and flight_recorder
        else None,
        rank=job.rank,
        stop_training=profiler.stop_training,
        saves=run is not None,
    )
    attached.remember(attached.Attached(session, windows, manifest["profiler"], run))
    return session


def _run_directory(job: Job, log_dir: Path, manifest: Mapping[str, Any], key: str) -> Path | None:
    try:
        if not _is_utf8(log_dir.absolute()):
            raise OSError(errno.EILSEQ, "the path is not UTF-8, as Paddle needs it", str(log_dir))
        return job.run_directory(log_dir, manifest, key)
    except (OSError, RuntimeError) as error:
        log.warning(
            f"rank {job.rank}: {log_dir}: {error}; nothing is recorded, the training goes on"
        )
        return None


def _liveness(job: Job, run: Path) -> LivenessPart | None:
    with _without(job.rank, "ranks that die will not be named"):
        return LivenessPart(LivenessRegistry(run, job.topology, job.rank))
    return None


def _out_of_memory(job: Job, run: Path) -> Part | None:
    with _without(
        job.rank, "if its memory runs out, ppprof memory will not know what held it", Exception
    ):
        import paddle

        from ppprof.capture.out_of_memory import OutOfMemoryPart

        device = _device()
        return OutOfMemoryPart(run, job.rank, device, memory_reader(paddle, device))
    return None


def _flight_recorder(
    profiler: ProfilerConfig, job: Job, run: Path, is_paused: Callable[[], bool], first_step: int
) -> FlightRecorder | None:
    if not profiler.flight_recorder and profiler.hang_after is None:
        return None
    with _without(job.rank, "ppprof hang will not know this rank", Exception):
        from ppprof.capture.ranks.flight_recorder import FlightRecorder

        hang = (profiler.hang_after, profiler.hang_exit_code)
        return FlightRecorder(run, job.topology, job.rank, *hang, is_paused, first_step)
    return None


def _clock_sync(job: Job, run: Path, key: str, recorded: Collection[int]) -> ClockSync | None:
    if not set(recorded) - {0}:  # no other rank records
        return None
    # Here and below: a training pays only for the parts that it uses.
    from ppprof.capture.ranks.clock_sync import ClockClient, ClockServer

    with _without(job.rank, "the ranks' clocks are not compared"):
        if job.rank == 0:
            return ClockServer(run, job.hosts[0], job_store(), f"{key}/clock")
        if job.rank in recorded:
            return ClockClient(run, job.rank, job_store(), f"{key}/clock")
    return None


def _triggers(
    profiler: ProfilerConfig,
    schedule: Schedule,
    job: Job,
    run: Path,
    key: str,
    recorded: Collection[int],
) -> Triggers | None:
    if profiler.trigger is None:
        return None
    from ppprof.capture.ranks.control_channel import (
        ControlChannel,
        CoordinatorChannel,
        WorkerChannel,
    )
    from ppprof.capture.ranks.triggers import Triggers

    world_size = job.topology.world_size
    with _without(job.rank, "windows on demand are off"):
        channel = ControlChannel()
        if job.rank:
            channel = WorkerChannel(job.rank, job_store(), f"{key}/trigger")
        elif world_size > 1:
            channel = CoordinatorChannel(job.hosts[0], world_size, job_store(), f"{key}/trigger")
        return Triggers(profiler.trigger, schedule, job.rank, job.topology, recorded, run, channel)
    return None


@contextmanager
def _without(
    rank: int, effect: str, errors: type[Exception] | tuple[type[Exception], ...] = _OF_SYSTEM
) -> Iterator[None]:
    """Log an error, and what the session lacks then.

    Args:
        rank: of this process.
        effect: what the session lacks.
        errors: kinds of errors to log; `Exception` for a part that uses private names of Paddle.
    """
    try:
        yield
    except errors as error:
        pass_interruption(error)
        log.warning(f"rank {rank}: {error}; {effect}")


def _steps(
    profiler: ProfilerConfig,
    job: Job,
    run: Path | None,
    summary: PerfSummary,
    printing: Collection[int],
    peak_flops: float | None,
    slow_lines: SlowLines | None,
) -> StepsPart:
    import paddle

    step_log = scalars = metrics = None
    if run is not None:
        metrics = _metrics(profiler, job, run, peak_flops)
        step_log = StepLog(RunFile(run, rundir.steps_path(job.rank)))
        # Only for ranks whose tables are printed: VisualDL's page can show some ranks, not thousands.
        if profiler.visualdl_scalars and job.rank in printing:
            is_first = job.rank == min(printing)
            scalars = Scalars(RunFile(run, rundir.scalars_path(job.rank, is_first=is_first)))
    is_judged = job.rank in printing and not _device().startswith("cpu")
    return StepsPart(
        summary,
        step_log,
        scalars,
        memory_reader(paddle, _device()),
        LastingCost() if is_judged else None,
        partial(host_peak_allocated_bytes, paddle),
        metrics,
        slow_lines,
    )


def _metrics(
    profiler: ProfilerConfig, job: Job, run: Path, peak_flops: float | None
) -> Metrics | None:
    if profiler.export == "prometheus":
        # One folder for all runs of a log directory: a collector's path stays.
        is_first = run == Path(profiler.profiler_log).absolute()
        log_dir, later_run = (run, "") if is_first else (run.parent, run.name)
        remove_ended(log_dir, job.rank)
        file = RunFile(log_dir, rundir.metrics_path(job.rank, later_run))
        return MetricsFile(file, run.name, job.rank, peak_flops)
    if profiler.export == "otlp":
        effect = 'Profiler.export has no effect (pip install "ppprof[otlp]")'
        with _without(job.rank, effect, Exception):
            from ppprof.capture.steps.otlp import OtlpMetrics

            return OtlpMetrics(run.name, job.rank, peak_flops)
    return None


def _windows(
    profiler: ProfilerConfig,
    job: Job,
    run: Path,
    store: WindowStore,
    steps: StepsPart,
    prints: bool,
    flight_recorder: FlightRecorder | None,
    schedule: Schedule,
) -> Windows | None:
    """Build the windows of this rank, and what observes them, in the order of its calls.

    ::

                               wraps functions   in the window       once the raw capture is written
        Collectives            x
        FleetSpans             x
        RpcCalls               x
        OperatorCallRecorder   x                 collects calls      writes them beside it
        StackSampler           x                 a thread samples    writes them beside it
        DiskBudget                               notes its size      counts the files above
        LongSteps                                a thread watches
    """
    # Imported here: these modules are the first to use private names of Paddle, and a new version
    # of Paddle may have moved the names.
    try:
        from ppprof.capture.recording.collectives import Collectives
        from ppprof.capture.recording.fleet import FleetSpans
        from ppprof.capture.recording.long_steps import LongSteps
        from ppprof.capture.recording.recorder import Recorder
        from ppprof.capture.recording.rpc import RpcCalls
        from ppprof.capture.recording.targets import Targets
        from ppprof.capture.recording.windows import Windows

        tasks = flight_recorder.device_tasks if flight_recorder is not None else tuple
        recorder = Recorder(profiler, prints, Targets(profiler.targets, run), tasks=tasks)
        stacks = None
        with process.without_collection():
            collectives = Collectives(job.topology)
            wrappers = (collectives, FleetSpans(), RpcCalls())
            operators = None
            if profiler.record_shapes:
                operators = _operators(job, run, lambda: collectives.num_calls)
        if profiler.python_stacks is not False:
            from ppprof.capture.recording.python_stacks import StackSampler

            stacks = StackSampler(run, profiler.python_stacks, profiler.source)
        budget = _disk_budget(profiler, job, run, prints, schedule)
        limits = (budget, LongSteps(operators, recorder.end_allocations))
        observers: list[WindowObserver | None] = [*wrappers, operators, stacks, *limits]
        return Windows(
            recorder,
            store,
            [each for each in observers if each is not None],
            before_waiting=steps.flush,
            first_step=schedule.first_step,
        )
    except Exception as error:
        pass_interruption(error)
        log.warning(f"rank {job.rank}: cannot record: {error}; the training goes on without")
        return None


def _disk_budget(
    profiler: ProfilerConfig, job: Job, run: Path, prints: bool, schedule: Schedule
) -> DiskBudget | None:
    """Return the limit of this rank's traces: the config's, or that of a schedule without end."""
    if profiler.max_trace_mb is not None:
        return DiskBudget(run, job.rank, profiler.max_trace_mb * MEGABYTE, profiler.formats)
    if schedule.num_windows is not None:
        return None
    num_ranks = len(job.topology.select(profiler.ranks))
    max_bytes = default_bytes(run, num_ranks)
    if prints:
        what = "every step is recorded, as Profiler.scheduler is not set,"
        if schedule.record is not None:
            what = f"Profiler.scheduler has no last window ({schedule}): windows are recorded"
        log.warning(
            f"rank {job.rank}: {what} until the traces of a rank take {format_bytes(max_bytes)} (all "
            "ranks: 10 GB, or a tenth of the free space); another limit: Profiler.max_trace_mb; a few "
            "steps only: Profiler.scheduler: [10, 20]"
        )
    limit = f"{format_bytes(max_bytes)}, as its schedule has no end (another limit: Profiler.max_trace_mb)"
    return DiskBudget(run, job.rank, max_bytes, profiler.formats, limit=limit)


def _operators(
    job: Job, run: Path, num_communications: Callable[[], int]
) -> OperatorCallRecorder | None:
    try:
        from ppprof.capture.recording.operator_calls import OperatorCallRecorder

        return OperatorCallRecorder(run, num_communications)
    except Exception as error:  # another version of Paddle
        pass_interruption(error)
        log.warning(f"rank {job.rank}: cannot record shapes: {reason(error)}")
        return None


def _read_block(
    profiler: ProfilerConfig | Mapping[str, Any] | str | PathLike[str],
) -> tuple[ProfilerConfig, Mapping[str, Any] | None]:
    """Return the typed block, and the whole config that it is a part of; None for a bare block."""
    from ppprof.config import ProfilerConfig, load_profiler

    if isinstance(profiler, ProfilerConfig):
        return profiler, None
    if isinstance(profiler, (str, PathLike)):
        loaded = load_profiler(str(profiler))
        return loaded.profiler, loaded.resolved
    values = _plain(profiler)
    if not isinstance(values, Mapping):
        raise UsageError(
            f"attach({profiler!r}): expected a Profiler block, a config with this block, the path of "
            "a YAML file with either, or None"
        )
    block = values.get("Profiler", values)
    block = {} if block is None else block
    if not isinstance(block, Mapping) or not all(isinstance(key, str) for key in block):
        raise UsageError(
            f"attach(): Profiler: {block!r}: expected a mapping of the block's keys, such as "
            "{'enable': True, 'scheduler': [10, 20]}"
        )
    return ProfilerConfig.from_mapping(block), None if block is values else values


def _plain(values: Any) -> Any:
    """Return the plain form of a node of OmegaConf; anything else as it is."""
    omegaconf = sys.modules.get("omegaconf")
    if omegaconf is None or not omegaconf.OmegaConf.is_config(values):
        return values
    return omegaconf.OmegaConf.to_container(values, resolve=True)


_USUAL_PEAKS = {
    "device_peak_flops": "FLOP/s, a number above 0 such as 312e12",
    "device_peak_gbps": "GB/s, a number above 0 such as 2039",
}


def _peak(name: str, given: float | None, config: Mapping[str, Any] | None) -> float | None:
    """Return a peak: the argument of `attach`, else that of the config's ``Global`` block, if any.

    An invalid value in the config is logged and ignored: the block may belong to another program.

    Raises:
        UsageError: the argument is not a positive, finite number.
    """
    if given is not None:
        if not _is_positive(given):
            raise UsageError(f"{name}: {given!r}: expected {_USUAL_PEAKS[name]}")
        return given
    block = config.get("Global") if isinstance(config, Mapping) else None
    from ppprof.config.yaml_source import literal

    stated: Any = block.get(name) if isinstance(block, Mapping) else None
    if isinstance(stated, str):  # YAML takes 312e12 for a text
        stated = literal(stated)
    if stated is None or _is_positive(stated):
        peak: float | None = stated
        return peak
    log.warning(f"Global.{name}: {stated!r}: ignored; expected {_USUAL_PEAKS[name]}")
    return None


def _is_positive(number: object) -> bool:
    """Return whether an argument is a positive, finite number."""
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        return False
    return 0 < number < math.inf


def _is_utf8(path: Path) -> bool:
    try:
        str(path).encode()
    except UnicodeEncodeError:  # Python has put surrogates in place of its bytes
        return False
    return True


def _device() -> str:
    """Return the device that Paddle computes on, such as ``gpu:0``."""
    import paddle

    return str(paddle.device.get_device())


def _uses_tf32() -> bool | None:
    """Return whether Paddle may compute products of float32 in TF32; None if it does not say."""
    import paddle

    if os.environ.get("NVIDIA_TF32_OVERRIDE") == "0":
        return False
    may_use = getattr(paddle.base.core, "get_cublas_switch", None)
    return None if may_use is None else bool(may_use())


def _device_peak_flops() -> float | None:
    """Return the peak FLOP/s of the device that Paddle computes on; None for a CPU, and if it is unknown."""
    name = compute_device_name()
    if name is None:
        return None
    from ppprof.hardware import known_peak_flops

    return known_peak_flops(name)
