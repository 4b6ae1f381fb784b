"""Totals of a torch trace by a peer: ``python benchmarks/truth_peers.py PEER FILE``, printed as JSON.

Runs in the peer's own environment, so it imports nothing of ppprof. HTA is the package
HolisticTraceAnalysis with pandas<3; TraceLens is installed from its repository (AMD-AGI/TraceLens).

The JSON has computation_ns and overlap, the share of communication that computation hides (0 to 1,
null without communication); or error.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import sys
from typing import Any


def hta(path: str) -> dict[str, Any]:
    from hta.trace_analysis import TraceAnalysis

    # By default, HTA leaves out the last step.
    analysis = TraceAnalysis(trace_files={0: path}, include_last_profiler_step=True)
    computation_us = float(analysis.get_temporal_breakdown(visualize=False)["compute_time(us)"][0])
    overlap: float | None = None
    with contextlib.suppress(Exception):  # without communication
        overlap = analysis.get_comm_comp_overlap(visualize=False)["comp_comm_overlap_pctg"][0] / 100
    return {"computation_ns": computation_us * 1000, "overlap": overlap}


def tracelens(path: str) -> dict[str, Any]:
    from TraceLens import TreePerfAnalyzer

    table = TreePerfAnalyzer.from_file(path).get_df_gpu_timeline()
    times_ms = dict(zip(table["type"], table["time ms"]))
    communication = times_ms.get("total_comm_time") or 0.0
    exposed = times_ms.get("exposed_comm_time") or 0.0
    return {
        "computation_ns": times_ms["computation_time"] * 1e6,
        "overlap": 1 - exposed / communication if communication else None,
    }


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    peers = {"hta": hta, "tracelens": tracelens}
    with contextlib.redirect_stdout(sys.stderr):
        try:
            totals = peers[sys.argv[1]](sys.argv[2])
        except Exception as error:
            totals = {"error": f"{type(error).__name__}: {error}"[:200]}
    cleaned = {
        key: None if isinstance(value, float) and math.isnan(value) else value
        for key, value in totals.items()
    }
    print(json.dumps(cleaned, default=float))
