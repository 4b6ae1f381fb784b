"""What HTA or TraceLens reports of a folder of torch traces, printed as JSON.

Run as ``python trace_peers.py PEER FOLDER`` in an environment that has both (``make
test-all`` installs it); imports nothing of ppprof. Times are in microseconds.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import warnings
from pathlib import Path
from typing import Any


def hta(folder: Path) -> dict[str, Any]:
    from hta.trace_analysis import TraceAnalysis

    # By default, HTA leaves out the last step.
    analysis = TraceAnalysis(trace_dir=str(folder), include_last_profiler_step=True)
    ranks = sorted(analysis.t.traces)
    report: dict[str, Any] = {"ranks": ranks, "steps": analysis.get_profiler_steps()}
    parts = analysis.get_temporal_breakdown(visualize=False)
    report["computation"] = parts.set_index("rank")["compute_time(us)"].to_dict()
    overlap = analysis.get_comm_comp_overlap(visualize=False)
    report["overlap_percent"] = overlap.set_index("rank")["comp_comm_overlap_pctg"].to_dict()
    kinds, kernels = analysis.get_gpu_kernel_breakdown(visualize=False, duration_ratio=1.0)
    report["kinds"] = kinds.set_index("kernel_type")["sum"].to_dict()
    report["kernels"] = {
        rank: group.set_index("name")["sum (us)"].to_dict()
        for rank, group in kernels.groupby("rank")
    }
    launches = analysis.get_cuda_kernel_launch_stats(ranks=ranks, visualize=False)
    report["launches"] = {rank: len(table) for rank, table in launches.items()}
    annotations = analysis.get_gpu_user_annotation_breakdown(visualize=False)
    report["annotations"] = (
        None if annotations is None else sorted(annotations["name"].unique().tolist())
    )
    return report


def hta_hosts(folder: Path) -> dict[str, Any]:
    """Return what HTA can say of traces without device events: rank 0's calls by name."""
    from hta.trace_analysis import TraceAnalysis

    analysis = TraceAnalysis(trace_dir=str(folder), include_last_profiler_step=True)
    symbols = analysis.t.symbol_table.get_sym_table()
    calls = analysis.t.traces[0]["name"].map(lambda number: symbols[number]).value_counts()
    ranks, steps = sorted(analysis.t.traces), analysis.get_profiler_steps()
    return {"ranks": ranks, "steps": steps, "calls": calls.to_dict()}


def tracelens_hosts(folder: Path) -> dict[str, Any]:
    """Return what TraceLens can say of traces without device events: modules around operators."""
    from TraceLens import TreePerfAnalyzer

    file = str(min(folder.glob("rank*.json*")))
    return {"modules": _modules(TreePerfAnalyzer.from_file(file, add_python_func=True))}


def _modules(analyzer: Any) -> dict[str, list[str]]:
    return {
        event["name"]: event["nn_module_stack"]
        for event in analyzer.tree.events
        if event.get("cat") == "cpu_op"
    }


def tracelens(folder: Path) -> dict[str, Any]:
    from TraceLens import NcclAnalyser, TreePerfAnalyzer

    files = sorted(map(str, folder.glob("rank*.json*")))
    report: dict[str, Any] = {"timelines": [], "launchers": [], "modules": []}
    for file in files:
        analyzer = TreePerfAnalyzer.from_file(file, add_python_func=True)
        timeline = analyzer.get_df_gpu_timeline()
        report["timelines"].append(
            {name: 1000 * ms for name, ms in zip(timeline["type"], timeline["time ms"])}
        )
        launchers = analyzer.get_df_kernel_launchers()
        report["launchers"].append(
            launchers.groupby("name")["total_direct_kernel_time"].sum().to_dict()
        )
        report["modules"].append(_modules(analyzer))
    collectives = NcclAnalyser(files, len(files)).build_df_long()
    columns = ["rank", "Process Group Name", "Collective name", "Group size", "dtype"]
    columns += ["In msg nelems", "In msg size (MB)", "dur"]
    report["collectives"] = collectives[columns].to_dict("records") if not collectives.empty else []
    return report


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    peers = {peer.__name__: peer for peer in (hta, hta_hosts, tracelens, tracelens_hosts)}
    with contextlib.redirect_stdout(sys.stderr):
        text = json.dumps(peers[sys.argv[1]](Path(sys.argv[2])), default=float)
    print(text)
