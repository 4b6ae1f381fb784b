"""The run directory: what a capture leaves and everything after it reads.

::

    profiler_log/
      manifest.json
      rank_00000_dp0_pp0_sharding0_mp0_time_20261120T201530_000.paddle_trace.json
      raw/rank_00000_dp0_pp0_sharding0_mp0_time_20261120T201530_000.pb
      raw/rank_00000_..._000.calls/   its remote calls (remote_calls.py)
      summary/rank_00000_w0.json
      steps/rank_00000.jsonl
      vdlrecords.rank_00000.log       scalars of the first rank that prints, for VisualDL
      scalars/rank_00001/             and of each further one: VisualDL shows one log a directory
      nodes/00000.node7               rank 0 ran on the machine of that name
      clocks/rank_00000.jsonl         a rank's clock against rank 0's (clocks.py)
      trigger/                        windows asked for while it runs (triggers.py)
      alive/, failed/                 ranks in their session, and those that failed (liveness.py)
      run_002/                        a later run, laid out the same way

Nodes that share no disk leave one each; ``run_id`` of the manifest says what belongs together.
"""

from __future__ import annotations

from ppprof.rundir.layout import (
    TRACE_SUFFIXES,
    TraceName,
    check_writable,
    claim,
    find,
    find_runs_below,
    jsonl_files,
    newest,
    partial_files,
    raw_files,
    reject_symlinks,
    scalars_path,
    steps_path,
    summary_files,
    trace_bytes,
)
from ppprof.rundir.manifest import (
    has_manifest,
    nodes,
    read_manifest,
    read_run_id,
    topology_of,
    write_manifest,
    write_node_marker,
)

__all__ = [
    "TRACE_SUFFIXES",
    "TraceName",
    "check_writable",
    "claim",
    "find",
    "find_runs_below",
    "has_manifest",
    "jsonl_files",
    "newest",
    "nodes",
    "partial_files",
    "raw_files",
    "read_manifest",
    "read_run_id",
    "reject_symlinks",
    "scalars_path",
    "steps_path",
    "summary_files",
    "topology_of",
    "trace_bytes",
    "write_manifest",
    "write_node_marker",
]
