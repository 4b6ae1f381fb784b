"""``ppprof diff`` of two traces against loading both: the cost of comparing.

Cold processes from start to end; files are in the page cache. The traces are
of a job (`gpu_job`) and of the same job with one more layer.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks import gpu_job
from benchmarks.trace_reading import Measured, Reader, machine, measure
from ppprof.analysis.diff.tree_alignment import Node, align_trees

SIZES_MB = (20, 100)
LOADED, COMPARED = "both traces loaded", "ppprof diff"
_LOAD = (
    "import pathlib, sys, ppprof; run = pathlib.Path(sys.argv[1]); "
    "[ppprof.open(run / f'{name}{sys.argv[2]}').events() for name in 'ab']"
)
_DIFF = (
    "import pathlib, sys; from ppprof.cli import main; run = pathlib.Path(sys.argv[1]); "
    "main(['diff', str(run / f'a{sys.argv[2]}'), str(run / f'b{sys.argv[2]}')])"
)
NUM_NODES = 10_000


def commands(suffix: str) -> tuple[Reader, Reader]:
    """Return the commands that load and compare; each gets a folder, then the suffix."""
    return (
        Reader(
            f"{LOADED}, {suffix}", ("-c", f"import sys; sys.argv.append({suffix!r}); {_LOAD}"), ""
        ),
        Reader(
            f"{COMPARED}, {suffix}", ("-c", f"import sys; sys.argv.append({suffix!r}); {_DIFF}"), ""
        ),
    )


def pair(folder: Path, size_mb: int) -> Path:
    """Return a folder with a.json, a.pb and b.json, b.pb; write them if they are missing."""
    steps = max(1, size_mb // gpu_job.STEP_MB)
    runs = folder / f"{size_mb}_mb"
    runs.mkdir(exist_ok=True)
    for name, layers in (("a", gpu_job.NUM_LAYERS), ("b", gpu_job.NUM_LAYERS + 1)):
        if not (runs / f"{name}.pb").exists():
            # In a separate process: a child's peak memory starts at that of its parent.
            paths = [str(runs / f"{name}{suffix}") for suffix in (".json", ".pb")]
            command = [sys.executable, "-m", "benchmarks.gpu_job", *paths, str(steps), str(layers)]
            subprocess.run(command, check=True)
    return runs


def table(results: Mapping[int, Mapping[str, Measured]]) -> str:
    """Return a Markdown table: seconds, peak memory, and both relative to loading."""
    rows = [
        ["MB each", "", "seconds", "/ loading", "peak MiB", "/ loading"],
        ["---:", "---", *["---:"] * 4],
    ]
    for size_mb, measured in results.items():
        for name, result in measured.items():
            loaded = measured[name.replace(COMPARED, LOADED)]
            cells = [result.error, "-", "-", "-"]
            if result.median_s is not None and loaded.median_s is not None:
                cells = [
                    f"{result.median_s:.2f}",
                    f"{result.median_s / loaded.median_s:.2f}",
                    f"{result.peak_bytes / 2**20:,.0f}",
                    f"{result.peak_bytes / loaded.peak_bytes:.2f}",
                ]
            rows.append([str(size_mb), name, *cells])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def alignments() -> str:
    """Return a Markdown table: seconds to align two trees of 10,000 nodes."""
    pick = random.Random(342)
    cases = {
        "50 nodes put in": (
            random_tree(NUM_NODES, 1),
            edited(random_tree(NUM_NODES, 1), pick),
        ),
        "nothing alike": (random_tree(NUM_NODES, 1), random_tree(NUM_NODES, 2)),
        "all of one name": (
            random_tree(NUM_NODES, 1, names=1),
            random_tree(NUM_NODES, 2, names=1),
        ),
        "10,000 siblings": (random_siblings(NUM_NODES, 1), random_siblings(NUM_NODES, 2)),
    }
    rows = ["| two trees of 10,000 nodes | seconds |\n", "| --- | ---: |\n"]
    for name, (left, right) in cases.items():
        begin = time.perf_counter()
        align_trees(left, right)
        rows.append(f"| {name} | {time.perf_counter() - begin:.2f} |\n")
    return "".join(rows)


def random_tree(num_nodes: int, seed: int, *, names: int = 4, deepest: int = 8) -> Node:
    """Return a random tree with ``num_nodes`` nodes that share a few names."""
    pick = random.Random(seed)
    root = Node("step")
    inner = [(root, 0)]
    for _ in range(num_nodes):
        node = Node(f"Layer{pick.randrange(names)}")
        above, depth = pick.choice(inner[-40:])
        above.children.append(node)
        if depth + 1 < deepest:
            inner.append((node, depth + 1))
    return root


def edited(root: Node, pick: random.Random) -> Node:
    """Insert 50 nodes into the tree and return it."""
    nodes, waiting = [], [root]
    while waiting:
        nodes.append(waiting.pop())
        waiting += nodes[-1].children
    for node in pick.sample(nodes, 50):
        node.children.insert(0, Node("New"))
    return root


def random_siblings(num_nodes: int, seed: int) -> Node:
    """Return a tree with ``num_nodes`` nodes on one level."""
    pick = random.Random(seed)
    return Node("step", [Node(pick.choice("abcdef")) for _ in range(num_nodes)])


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--sizes", metavar="MB,...", default=",".join(map(str, SIZES_MB)))
    add("--repeats", type=int, default=5, help="timed runs of each command (5)")
    add("--keep", type=Path, metavar="DIR", help="directory of the traces: write or reuse them")
    options = parser.parse_args(argv)
    print(machine(), end="\n\n")
    results: dict[int, Mapping[str, Measured]] = {}
    with contextlib.ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for size_mb in map(int, options.sizes.split(",")):
            runs = pair(folder, size_mb)
            readers = [reader for suffix in (".json", ".pb") for reader in commands(suffix)]
            results[size_mb] = measure(readers, {"": runs}, options.repeats)
    print(table(results))
    print(alignments())


if __name__ == "__main__":
    sys.exit(main())
