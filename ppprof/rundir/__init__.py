"""The run directory: a capture writes it, and everything after the capture reads it.

::

    profiler_log/
      manifest.json
      rank_00000_dp0_pp0_sharding0_mp0_time_20261120T201530_000.paddle_trace.json
      raw/rank_00000_dp0_pp0_sharding0_mp0_time_20261120T201530_000.pb
      raw/rank_00000_..._000.ops      arguments of operators in that window (operator_calls.py)
      raw/rank_00000_..._000.calls/   remote calls of that window (remote_calls.py)
      stacks/rank_00000_..._000.stacks  samples of Python stacks in that window (python_stacks.py)
      memory/00000.json               who held the memory when it ran out (out_of_memory.py)
      flight/00000.ring               the last communication operations (flight.py)
      summary/rank_00000_w0.json
      steps/rank_00000.jsonl
      vdlrecords.rank_00000.log       VisualDL scalars of the first rank that prints tables
      scalars/rank_00001/             VisualDL scalars of another rank that prints tables
      nodes/00000.node7               host name of the machine that rank 0 ran on
      clocks/rank_00000.jsonl         offsets between rank 0's clock and this rank's (clocks.py)
      devices/node7.json              whether the profiler of a node's devices works (device_probes.py)
      metrics/rank_00000.prom         numbers for Prometheus; of a later run: run_002_rank_00000.prom
      trigger/                        requests for windows during the run (triggers.py)
      alive/, failed/                 ranks with an open session, and failed ranks (liveness.py)
      run_002/                        a later run, with the same layout

Every module of this package reads and writes through `ppprof.rundir.run_file`, the gate that opens
regular files only.

``scalars/`` has a folder for each rank because VisualDL shows one log per folder.

Nodes without a shared disk write one run directory each. All run directories of one run have the
same ``run_id`` in their manifests.
"""

from __future__ import annotations

from ppprof.rundir.directories import (
    Listing,
    check_writable,
    claim,
    find,
    find_runs_below,
    first_run,
    name_of,
    newest,
    reject_symlinks,
    runs_of,
)
from ppprof.rundir.manifest import (
    JobContext,
    has_manifest,
    job_context_of,
    nodes,
    read_manifest,
    read_run_id,
    topology_of,
    write_manifest,
    write_node_marker,
)
from ppprof.rundir.names import (
    ALLOCATIONS_MARKER,
    CLOCK_MARKER,
    DEVICE_CLOCK_MARKER,
    GARBAGE_COLLECTION,
    INCOMPLETE_MARKER,
    PAUSE_SPAN,
    TRACE_SUFFIXES,
    TraceName,
    cut_captures,
    jsonl_files,
    metrics_path,
    partial_files,
    raw_files,
    scalars_path,
    steps_path,
    summary_files,
    trace_bytes,
)

__all__ = [
    "ALLOCATIONS_MARKER",
    "CLOCK_MARKER",
    "DEVICE_CLOCK_MARKER",
    "GARBAGE_COLLECTION",
    "INCOMPLETE_MARKER",
    "PAUSE_SPAN",
    "TRACE_SUFFIXES",
    "JobContext",
    "Listing",
    "TraceName",
    "check_writable",
    "claim",
    "cut_captures",
    "find",
    "find_runs_below",
    "first_run",
    "has_manifest",
    "job_context_of",
    "jsonl_files",
    "metrics_path",
    "name_of",
    "newest",
    "nodes",
    "partial_files",
    "raw_files",
    "read_manifest",
    "read_run_id",
    "reject_symlinks",
    "runs_of",
    "scalars_path",
    "steps_path",
    "summary_files",
    "topology_of",
    "trace_bytes",
    "write_manifest",
    "write_node_marker",
]
