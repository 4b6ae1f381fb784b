"""`attach`: from the ``Profiler`` block to the session that a training loop holds."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppprof import rundir
from ppprof.capture.output import log_to_stderr, reason
from ppprof.capture.postprocess import PostProcessor
from ppprof.capture.ranks.clock_sync import ClockClient, ClockServer, ClockSync
from ppprof.capture.ranks.control_channel import (
    ControlChannel,
    CoordinatorChannel,
    LocalChannel,
    WorkerChannel,
)
from ppprof.capture.ranks.job import Job, agreement, job_store
from ppprof.capture.ranks.triggers import Triggers
from ppprof.capture.recording.disk_budget import Budget
from ppprof.capture.schedule import Schedule
from ppprof.capture.session import NoopSession, RecordingSession
from ppprof.capture.steps.step_log import StepLog
from ppprof.capture.steps.timer import StepTimer
from ppprof.capture.steps.visualdl_scalars import Scalars
from ppprof.errors import PpprofError, UsageError
from ppprof.hardware import known_peak_flops
from ppprof.rundir.liveness import LivenessRegistry

if TYPE_CHECKING:
    from ppprof.capture.recording.windows import Windows
    from ppprof.config import ProfilerConfig
    from ppprof.topology import Topology

log = logging.getLogger("ppprof")

_attached: RecordingSession | None = None
_settings: Mapping[str, Any] = {}


@dataclass(frozen=True)
class OpenWindow:
    """The window that this process records right now."""

    rank: int
    calls: Path
    """Where remote calls made in it are kept."""
    settings: Mapping[str, Any]
    """The ``Profiler`` block."""


def open_window() -> OpenWindow | None:
    """The window of the session that `attach` opened, while one is recorded."""
    session = _attached
    calls = session.calls if session is not None else None
    return None if session is None or calls is None else OpenWindow(session.rank, calls, _settings)


def attach(
    profiler: ProfilerConfig | Mapping[str, Any] | None,
    *,
    topology: Topology | None = None,
    config: Mapping[str, Any] | None = None,
    device_peak_flops: float | None = None,
) -> NoopSession:
    """A profiler for a training loop; an object that does nothing when it is off.

    To be called after ``fleet.init`` or ``init_parallel_env``, on every rank: those that
    ``Profiler.ranks`` leaves out still write their step times::

        with ppprof.attach(cfg.Profiler) as prof:
            for batch in loader:
                train_step(batch)
                prof.step(num_samples=batch_size)

    Args:
        profiler: the ``Profiler`` block, typed or as a plain mapping; None is off.
        topology: where the ranks stand; without it, Fleet's if it is initialised, else data
            parallel over all ranks.
        config: the whole config, to be kept in the manifest.
        device_peak_flops: dense FLOP/s of one device in the type that is trained in, for MFU;
            without it, that of bf16 and fp16 where the device is a known one (`ppprof.hardware`).
            Kept in the manifest.

    Returns:
        A context manager with ``step(num_samples, num_tokens, num_micro_batches, num_flops,
        loss)``, ``paused()``, ``should_stop`` and ``close()``.

    Raises:
        ConfigError: the mapping is no valid ``Profiler`` block.
        UsageError: ``ranks``, ``print_ranks`` or ``trigger.ranks`` name ranks that the job does not have, or
            ``device_peak_flops`` is no positive number.
    """
    if profiler is None:
        return NoopSession()
    if isinstance(profiler, Mapping):
        from ppprof.config import ProfilerConfig

        profiler = ProfilerConfig.from_mapping(profiler)
    if not profiler.enable:
        return NoopSession()
    log_to_stderr()
    if _attached is not None and not _attached.closed:
        log.warning("attach() was called while an earlier session is open: this one does nothing")
        return NoopSession()
    if device_peak_flops is None:
        device_peak_flops = _device_peak_flops()
    elif not (isinstance(device_peak_flops, (int, float)) and 0 < device_peak_flops < math.inf):
        raise UsageError(
            f"device_peak_flops: {device_peak_flops!r}: expected FLOP/s, a number above 0 "
            "such as 312e12"
        )
    try:
        return _attach(profiler, topology, config, device_peak_flops)
    except PpprofError:
        raise
    except Exception as error:  # an environment or a Paddle that we have not seen
        log.warning(f"cannot attach: {reason(error)}; nothing is recorded, the training goes on")
        # Not `NoopSession`: the other ranks will stop where ``stop_training`` says, and so has this one.
        return RecordingSession(
            Schedule.of(profiler.scheduler), stop_training=profiler.stop_training, prints=False
        )


def _attach(
    profiler: ProfilerConfig,
    topology: Topology | None,
    config: Mapping[str, Any] | None,
    device_peak_flops: float | None,
) -> RecordingSession:
    global _attached, _settings
    job = Job.here(topology)
    recorded = job.topology.select(profiler.ranks)
    printing = job.topology.select(profiler.print_ranks)
    if profiler.trigger is not None:
        job.topology.select(profiler.trigger.ranks)
    manifest: dict[str, Any] = {
        "profiler": profiler.to_mapping(),
        "config": config,
        "device_peak_flops": device_peak_flops,
    }
    key = agreement()
    shown = _run_directory(job, Path(profiler.profiler_log), manifest, key)
    run = shown and shown.absolute()  # wherever the training changes to
    clock = finisher = windows = triggers = None
    on_demand = profiler.trigger is not None
    schedule = Schedule.of(profiler.scheduler, on_demand)
    if run is not None and not profiler.timer_only:
        clock = _clock(job, run, key, recorded)
        triggers = _triggers(profiler, schedule, job, run, key, recorded)
    if run is not None and job.rank in recorded and not profiler.timer_only:
        finisher = PostProcessor(
            run,
            job.rank,
            prints=job.rank in printing,
            background=profiler.background,
            then=profiler.command,
        )
        windows = _windows(profiler, job, run, finisher, prints=job.rank in printing)
    timer = StepTimer()
    timer.watch_readers()
    _settings = manifest["profiler"]
    _attached = RecordingSession(
        schedule,
        rank=job.rank,
        run=run,
        shown=shown,
        roster=_roster(job, run),
        clock=clock,
        windows=windows,
        finisher=finisher,
        triggers=triggers,
        steps=StepLog(run / rundir.steps_path(job.rank)) if run is not None else None,
        scalars=_scalars(job, run, printing) if profiler.visualdl_scalars else None,
        timer=timer,
        device_peak_bytes=_device_peak_bytes(),
        device_peak_flops=device_peak_flops,
        stop_training=profiler.stop_training,
        timer_only=profiler.timer_only,
        prints=job.rank in printing,
        viewed=next((fmt for fmt in profiler.formats if fmt != "pb"), None),
    )
    return _attached


def _run_directory(job: Job, log_dir: Path, manifest: Mapping[str, Any], key: str) -> Path | None:
    try:
        return job.run_directory(log_dir, manifest, key)
    except (OSError, RuntimeError) as error:
        log.warning(
            f"rank {job.rank}: {log_dir}: {error}; nothing is recorded, the training goes on"
        )
        return None


def _roster(job: Job, run: Path | None) -> LivenessRegistry | None:
    try:
        return LivenessRegistry(run, job.topology, job.rank) if run is not None else None
    except OSError as error:
        log.warning(f"rank {job.rank}: {error}; should ranks die, they will not be named")
        return None


def _clock(job: Job, run: Path, key: str, recorded: Collection[int]) -> ClockSync | None:
    if not set(recorded) - {0}:  # nobody to compare
        return None
    try:
        if job.rank == 0:
            return ClockServer(run, job.hosts[0], job_store(), f"{key}/clock")
        return (
            ClockClient(run, job.rank, job_store(), f"{key}/clock")
            if job.rank in recorded
            else None
        )
    except (OSError, RuntimeError) as error:
        log.warning(f"rank {job.rank}: {error}; the ranks' clocks are not compared")
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
    try:
        mail: ControlChannel = LocalChannel()
        if job.topology.world_size > 1 and job.rank == 0:
            mail = CoordinatorChannel(
                job.hosts[0], job.topology.world_size, job_store(), f"{key}/trigger"
            )
        elif job.topology.world_size > 1:
            mail = WorkerChannel(job.rank, job_store(), f"{key}/trigger")
    except (OSError, RuntimeError) as error:
        log.warning(f"rank {job.rank}: {error}; there are no triggered windows")
        return None
    return Triggers(profiler.trigger, schedule, job.rank, job.topology, recorded, run, mail)


def _windows(
    profiler: ProfilerConfig, job: Job, run: Path, finisher: PostProcessor, prints: bool
) -> Windows | None:
    # Here is where Paddle's private parts are touched first, and a Paddle that we have not seen
    # may have moved them.
    try:
        from ppprof.capture.recording.collectives import Collectives
        from ppprof.capture.recording.fleet import FleetSpans
        from ppprof.capture.recording.recorder import Recorder
        from ppprof.capture.recording.windows import Windows

        most, budget = profiler.max_trace_mb, None
        if most is not None:
            budget = Budget(run, job.rank, most, profiler.formats)
        recorder = Recorder(profiler, prints)
        wrappers = (Collectives(job.topology), FleetSpans())
        return Windows(recorder, finisher, run, job.rank, job.topology, budget, wrappers)
    except Exception as error:
        log.warning(f"rank {job.rank}: cannot record: {error}; the training goes on without")
        return None


def _scalars(job: Job, run: Path | None, printing: Collection[int]) -> Scalars | None:
    # A page can show some ranks and not thousands, and those that print are the ones looked at.
    if run is None or job.rank not in printing:
        return None
    is_first = job.rank == min(printing)
    return Scalars(run / rundir.scalars_path(job.rank, is_first=is_first))


def _device_peak_flops() -> float | None:
    """Return the peak of the device that Paddle computes on; None for the CPU and unknown ones."""
    import paddle

    if not paddle.device.get_device().startswith("gpu"):
        return None
    return known_peak_flops(paddle.device.cuda.get_device_name())


def _device_peak_bytes() -> Callable[[], int] | None:
    import paddle

    has_gpu = paddle.device.cuda.device_count() > 0
    return paddle.device.cuda.max_memory_allocated if has_gpu else None
