"""`ppprof.open`: which files are a rank's window, and the tables they give."""

from __future__ import annotations

import gzip
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import ppprof
from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.summaries.views import summarize
from ppprof.choices import VIEWS, SummaryOptions
from ppprof.errors import InputError, UsageError
from ppprof.rundir import TraceName, claim, write_node_marker
from ppprof.rundir.recordings import resolve_each
from ppprof.trace import formats, read, schema
from ppprof.trace.formats import read_ranks
from tests.fixtures import gpu_traces
from tests.fixtures.run_directories import make_run, only_tables, step_lines, trace_name
from tests.fixtures.timeline import write

RUNS = Path(__file__).parents[1] / "fixtures/runs"


def is_opened(path: Path) -> list[tuple[int, int, str]]:
    return [
        (recording.rank, recording.window, recording.name)
        for recording in ppprof.open(path).recordings
    ]


def test_a_run_directory_has_ranks_and_windows(tmp_path):
    make_run(tmp_path / "log", {0: 2, 1: 1})
    run = ppprof.open(tmp_path / "log")

    assert run.ranks == [0, 1]
    assert (run.windows(), run.windows(0), run.windows(1)) == ([0, 1], [0, 1], [0])
    assert [recording.coordinate for recording in run.recordings][::2] == [
        "dp0_pp0_sharding0_mp0",
        "dp1_pp0_sharding0_mp0",
    ]
    assert run.manifest["profiler"]["enable"] is True


def test_the_newest_run_is_opened(tmp_path):
    make_run(tmp_path, {0: 1})
    newest = make_run(tmp_path, {0: 1, 1: 1})
    assert newest.name == "run_002"
    assert ppprof.open(tmp_path).path == newest
    assert ppprof.open(tmp_path).ranks == [0, 1]


@pytest.fixture
def nodes(tmp_path):
    """Directories that two nodes left of run ``a``; node1 has an earlier and a later run too."""
    make_run(tmp_path / "node1/log", {3: 1}, "earlier")
    left = [
        make_run(tmp_path / "node0/log", {0: 2, 1: 1}, "a"),
        make_run(tmp_path / "node1/log", {2: 1, 3: 2}, "a"),
    ]
    write_node_marker(left[1], 3)
    return left


def test_directories_of_one_run_are_one(nodes):
    run = ppprof.open(*nodes)
    assert (run.path, run.paths) == (nodes[0], tuple(nodes))
    assert run.ranks == [0, 1, 2, 3]
    assert (run.windows(0), run.windows(2)) == ([0, 1], [0])
    assert run.manifest["nodes"] == {3: platform.node()}
    assert run.events(window=1)["rank"].unique().to_list() == [0, 3]
    assert_frame_equal(run.summary("op", rank=2), ppprof.open(nodes[1]).summary("op", rank=2))
    with pytest.raises(UsageError) as error:
        run.events(rank=7)
    assert str(error.value) == f"{nodes[0]}, {nodes[1]}: no rank 7; it has ranks 0-3"
    assert ppprof.open(nodes[0], nodes[0]).paths == (nodes[0],)


def test_of_a_log_directory_the_same_run_is_taken_and_not_the_newest(nodes, tmp_path):
    make_run(tmp_path / "node1/log", {2: 1}, "later")
    assert ppprof.open(tmp_path / "node0/log", tmp_path / "node1/log").paths == tuple(nodes)


@pytest.mark.parametrize("below", [".", "node0"])
def test_directories_of_one_run_may_lie_below_one(below, nodes, tmp_path):
    expected = nodes if below == "." else nodes[:1]
    assert ppprof.open(tmp_path / below).paths == tuple(expected)


def test_tables_that_nodes_left_are_joined(nodes, cli):
    for path in nodes:
        cli("finish", path)
        for trace in path.glob("*.paddle_trace.*"):
            trace.unlink()
    run = ppprof.open(*nodes)
    assert [(recording.rank, recording.window) for recording in run.recordings] == [
        (0, 0),
        (0, 1),
        (1, 0),
        (2, 0),
        (3, 0),
        (3, 1),
    ]
    assert run.summary("op", rank=3, window=1).height


def test_directories_of_several_runs_are_refused(nodes, tmp_path):
    later = make_run(tmp_path / "node1/log", {2: 1}, "later")
    old = [make_run(tmp_path / f"old{number}", {0: 1}) for number in (1, 2)]
    for paths in ([nodes[0], later], old, [*nodes, old[0]]):
        with pytest.raises(InputError) as error:
            ppprof.open(*paths)
        named = ", ".join(map(str, paths))
        assert str(error.value) == f"{named}: different runs; expected directories of one run"
    with pytest.raises(InputError, match="different runs"):
        ppprof.open(tmp_path)


def test_a_file_or_nothing_beside_a_run_is_reported(nodes, tmp_path):
    path = write(tmp_path / "a.pb", *gpu_traces.one_step())
    with pytest.raises(InputError, match=r"a\.pb: Not a directory"):
        ppprof.open(nodes[0], path)
    with pytest.raises(InputError, match="nowhere: No such file or directory"):
        ppprof.open(nodes[0], tmp_path / "nowhere")


def test_paths_are_grouped_by_run(nodes, tmp_path):
    other = make_run(tmp_path / "other", {0: 1}, "b")
    old = make_run(tmp_path / "old", {0: 1})
    paths = [nodes[0], old, "nowhere", other, nodes[1], old]
    assert [list(given) for given, _ in resolve_each(paths)] == [
        list(map(str, group)) for group in (nodes, [old], ["nowhere"], [other], [old])
    ]


def test_nothing_is_read_before_it_is_asked_for(tmp_path, monkeypatch):
    run_path = make_run(tmp_path, {0: 2, 1: 1})
    asked = []
    monkeypatch.setattr(
        "ppprof.run.traces.read_ranks", lambda path, **_: asked.append(path) or read_ranks(path)
    )
    run = ppprof.open(run_path)
    assert asked == []
    run.summary("model", rank=1)
    run.summary("op", rank=1, sorted_by="cpu_max")
    run.summary("op", rank=1, steps="1:")
    assert asked == [run_path / trace_name(1).raw]


def test_events_say_their_rank_and_window(tmp_path):
    run_path = make_run(tmp_path, {0: 2, 1: 1})
    run = ppprof.open(run_path)
    one = read(run_path / trace_name(0, 1).raw)

    events = run.events(rank=0, window=1)
    assert events.columns == ["rank", "window", *schema.EVENTS]
    assert events.schema["rank"] == events.schema["window"] == pl.Int64
    assert_frame_equal(events.drop("rank", "window"), one.events)
    assert_frame_equal(run.memory(0, 1).drop("rank", "window"), one.memory)

    together = run.events()
    counted = together.group_by("rank", "window", maintain_order=True).len()
    num = one.events.height
    assert counted.rows() == [(0, 0, num), (0, 1, num), (1, 0, num)]
    assert run.events(rank=0)["window"].unique().to_list() == [0, 1]
    assert run.events(window=1)["rank"].unique().to_list() == [0]
    assert run.memory()["rank"].unique().to_list() == [0, 1]


def test_parents_of_several_windows_can_be_joined(tmp_path):
    """As the docstring of `Run.events` says."""
    run = ppprof.open(make_run(tmp_path, {0: 1, 1: 1}))
    events = run.events().with_columns(
        row=pl.int_range(pl.len()).over("rank", "window"), name=pl.col("name").cast(pl.String)
    )
    above = events.select("rank", "window", parent="row", above="name")
    joined = events.join(above, on=["rank", "window", "parent"])
    assert set(joined.filter(name="Optimization Step")["above"]) == {
        "ProfileStep#0",
        "ProfileStep#1",
        "ProfileStep#2",
    }


@pytest.mark.parametrize("view", VIEWS)
def test_a_summary_is_that_of_the_trace(view, tmp_path):
    path = make_run(tmp_path, {0: 1, 1: 1})
    trace = read(path / trace_name(1).raw)
    table = ppprof.open(path).summary(view, rank=1, sorted_by="gpu_max", thread_sep=True)
    assert_frame_equal(table, summarize(Profile(trace, SummaryOptions("gpu_max", True)), view))


def test_of_a_single_file_nothing_needs_to_be_named(tmp_path):
    path = write(tmp_path / "some.pb", *gpu_traces.training())
    run = ppprof.open(str(path))
    assert is_opened(path) == [(0, 0, "some.pb")]
    assert run.trace().span == 0
    assert run.summary("model").height == 6
    assert run.manifest == {}
    assert is_opened(write(tmp_path / trace_name(3, 2).trace("pb"), *gpu_traces.nothing())) == [
        (3, 2, trace_name(3, 2).trace("pb"))
    ]


def test_steps_restrict_the_tables(tmp_path):
    run = ppprof.open(write(tmp_path / "a.pb", *gpu_traces.training(first_step=5)))
    assert run.summary("model", steps="6:")["calls"].to_list()[0] == 2
    assert run.summary("model", steps=5)["calls"].to_list()[0] == 1
    assert run.summary("model")["calls"].to_list()[0] == 3
    with pytest.raises(UsageError, match=r"a\.pb: no step of 8:; it has steps 5-7"):
        run.summary("model", steps="8:")


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda run: run.events(rank=7), "no rank 7; it has ranks 0-1"),
        (lambda run: run.windows(7), "no rank 7; it has ranks 0-1"),
        (lambda run: run.events(rank=1, window=3), "no window 3 of rank 1; it has window 0"),
        (lambda run: run.events(window=3), "no window 3; it has windows 0-1"),
        (lambda run: run.trace(), "it has ranks 0-1: choose one"),
        (lambda run: run.summary("op"), "it has ranks 0-1: choose one"),
        (lambda run: run.summary("op", rank=0), "it has windows 0-1: choose one"),
        (lambda run: run.summary("ops", rank=1), "view 'ops': expected one of device, overview"),
        (lambda run: run.summary("op", rank=1, sorted_by="x"), "sorted_by 'x': expected auto"),
        (lambda run: run.summary("op", rank=1, steps="x"), "steps 'x': expected A:B"),
    ],
)
def test_what_is_missing_is_reported_with_what_exists(ask, message, tmp_path):
    run = ppprof.open(make_run(tmp_path, {0: 2, 1: 1}))
    with pytest.raises(UsageError) as error:
        ask(run)
    assert message in str(error.value)


def test_of_several_files_of_a_window_the_best_is_read_once(tmp_path, cli):
    run_path = make_run(tmp_path, {0: 1}, formats=["json", "json.gz", "pb"])
    cli("finish", run_path)
    shutil.copy(run_path / trace_name(0).raw, run_path / trace_name(0).trace("pb"))
    (recording,) = ppprof.open(run_path).recordings

    assert [path.relative_to(run_path).as_posix() for path in recording.files] == [
        trace_name(0).trace("pb"),
        trace_name(0).raw,
        trace_name(0).trace("json"),
        trace_name(0).trace("json.gz"),
    ]
    assert recording.saved == run_path / trace_name(0).summary
    num_events = read(run_path / trace_name(0).raw).events.height
    assert ppprof.open(run_path).events().height == num_events


def test_of_several_files_of_a_window_the_next_best_is_read_when_one_is_broken(tmp_path, messages):
    run_path = make_run(tmp_path, {0: 1})
    raw = run_path / trace_name(0).raw
    good = run_path / trace_name(0).trace("pb")
    shutil.copy(raw, good)
    whole = ppprof.open(run_path).summary("op")
    good.write_bytes(good.read_bytes()[:-9])

    assert_frame_equal(ppprof.open(run_path).summary("op"), whole)
    assert re.search(rf"{good.name}: byte .*; the file is truncated", messages[0])


def test_a_broken_file_costs_itself(tmp_path, messages):
    run_path = make_run(tmp_path, {0: 1, 1: 1})
    (run_path / trace_name(0).raw).write_bytes(b"\x0f" * 40)
    run = ppprof.open(run_path)

    assert run.events()["rank"].unique().to_list() == [1]
    assert [message.partition(": ")[0] for message in messages] == [
        str(run_path / trace_name(0).raw)
    ]
    for broken in (lambda: run.events(rank=0), lambda: run.summary("op", rank=0)):
        with pytest.raises(InputError, match="is not a Paddle"):
            broken()


def test_files_without_a_rank_are_numbered_in_the_order_of_their_names(tmp_path):
    for name in (
        "host_apid_10_time_2026_11_20_20_15_31_123.paddle_trace.pb",
        "host_apid_10_time_2026_11_20_20_15_31_123.paddle_trace.json",
        "host_apid_10_time_2026_11_20_20_15_30_99.paddle_trace.pb",
        "host_apid_9_time_2026_11_20_20_15_30_5.paddle_trace.json.gz",
        "node.example.org_77.1795214805084.pt.trace.json",
        "mine.pb",
        "mine.pb.gz",
        "zipped.pb.gz",
        ".hidden.pb",
        "config.json",
    ):
        (tmp_path / name).touch()
    assert is_opened(tmp_path) == [
        (0, 0, "host_apid_9"),
        (1, 0, "host_apid_10"),
        (1, 1, "host_apid_10"),
        (2, 0, "mine"),
        (3, 0, "node.example.org_77"),
        (4, 0, "zipped"),
    ]
    second = ppprof.open(tmp_path).recordings[2]
    assert [path.suffix for path in second.files] == [".pb", ".json"]
    assert "123" in second.files[0].name


def test_compressed_raw_captures_are_read(tmp_path):
    plain = make_run(tmp_path / "plain", {0: 1, 1: 1})
    packed = Path(shutil.copytree(plain, tmp_path / "packed"))
    for path in packed.glob("raw/*.pb"):
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    assert [row[:2] for row in is_opened(packed)] == [(0, 0), (1, 0)]
    assert_frame_equal(ppprof.open(packed).events(), ppprof.open(plain).events())


def test_files_without_a_rank_come_after_those_with_one(tmp_path):
    (tmp_path / trace_name(4).trace("json")).touch()
    (tmp_path / "mine.pb").touch()
    assert [(rank, name) for rank, _, name in is_opened(tmp_path)] == [
        (4, trace_name(4).trace("json")),
        (5, "mine"),
    ]


def test_two_runs_mixed_in_one_directory_are_refused(tmp_path):
    for second in (1, 2):
        name = TraceName(0, "dp0", datetime(2026, 11, 20, 20, 15, second), 0)
        (tmp_path / name.trace("json")).touch()
    with pytest.raises(InputError, match=r", .*: both are of rank 0, window 0; expected"):
        ppprof.open(tmp_path)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nowhere", "nowhere: No such file or directory"),
        ("log", "log: no trace in it: expected"),
        ("x" * 300, "File name too long"),
    ],
)
def test_a_path_without_a_trace(path, message, tmp_path):
    claim(tmp_path / "log")
    with pytest.raises(InputError, match=message):
        ppprof.open(tmp_path / path)


@pytest.mark.parametrize("thread_sep", [False, True])
def test_where_only_tables_are_left_they_are_the_same(tmp_path, thread_sep):
    settings = {"thread_sep": thread_sep, "sorted_by": "cpu_max"}
    run_path = only_tables(tmp_path / "left", **settings)
    whole = ppprof.open(make_run(tmp_path / "whole", {0: 1}))
    run = ppprof.open(run_path)

    assert is_opened(run_path) == [(0, 0, "rank_00000_w0.json")]
    made = run.tables(VIEWS, options=SummaryOptions(**settings))
    assert made.recording.coordinate == "dp0_pp0_sharding0_mp0"
    assert (made.steps, made.sorted_by) == ([0, 1, 2], "cpu_max")
    for view in VIEWS:
        assert_frame_equal(made.tables[view], whole.summary(view, **settings))


def test_where_only_tables_are_left_no_others_can_be_made(tmp_path):
    run = ppprof.open(only_tables(tmp_path))
    assert run.summary("op", sorted_by="gpu_total").height
    for other in ({"steps": 1}, {"sorted_by": "cpu_min"}, {"thread_sep": True}):
        with pytest.raises(InputError, match="all steps, sorted by gpu_total, threads merged"):
            run.summary("op", **other)
    with pytest.raises(InputError, match="only tables are left of this window, no trace"):
        run.events()


def test_where_only_tables_are_left_step_times_are_too(tmp_path, cli):
    path = only_tables(tmp_path)
    (path / "steps").mkdir(exist_ok=True)
    times = [{**line, "communication_ns": 1000} for line in step_lines(2e7)]
    lines = "".join(f"{json.dumps(line)}\n" for line in times)
    (path / "steps/rank_00000.jsonl").write_text(lines)
    assert ppprof.open(path).recordings
    assert not ppprof.open(path).has_traces
    assert "no window; by the times of" in cli("ranks", path).out
    assert "in step times alone" in cli("advise", path).out
    assert "steps (without a window) against" in cli("diff", path, "--experiment-rank", "0").out
    cli("report", path, "-o", tmp_path / "page.html")


def test_tables_stand_in_for_a_trace_that_cannot_be_read(tmp_path, messages, cli):
    run_path = make_run(tmp_path, {0: 1}, formats=["pb"])
    cli("finish", run_path)
    whole = ppprof.open(run_path).summary("model")
    (run_path / trace_name(0).raw).write_bytes(b"\x0f")
    assert_frame_equal(ppprof.open(run_path).summary("model"), whole)
    assert re.search("truncated", messages[0])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not the tables of a window"),
        ("[]", "not the tables of a window"),
        ('{"schema_version": 1, "tables": {"op": []}}', "not the tables of a window: KeyError"),
        ('{"schema_version": 9, "tables": {}}', "schema 9 is newer than this ppprof reads"),
        ("[" * 100_000, "not the tables of a window: RecursionError"),
    ],
)
def test_tables_that_cannot_be_read(content, message, tmp_path):
    run_path = only_tables(tmp_path)
    (run_path / trace_name(0).summary).write_text(content)
    with pytest.raises(InputError, match=message):
        ppprof.open(run_path).summary("op")


def test_tables_of_little(tmp_path, cli):
    """Without rows JSON says no columns; they are known all the same."""
    run_path = make_run(tmp_path, {0: 0})
    write(run_path / trace_name(0).raw, *gpu_traces.no_step())
    cli("finish", run_path)
    saved = json.loads((run_path / trace_name(0).summary).read_text())
    assert saved["tables"]["mem"] == []
    next(run_path.glob("*.paddle_trace.json")).unlink()
    memory = ppprof.open(run_path).summary("mem")
    assert (memory.height, memory.columns[:3]) == (0, ["place", "type", "name"])


def test_progress_names_the_file(tmp_path):
    path = write(tmp_path / "a.pb", *gpu_traces.one_step())
    seen = []
    ppprof.open(path, progress=lambda *at: seen.append(at)).events()
    size = path.stat().st_size
    assert seen[-1] == (path, size, size)
    seen = []
    formats.read(path, progress=lambda *at: seen.append(at))
    assert seen[-1] == (size, size)


def test_the_functions_take_paths_as_they_take_runs(tmp_path):
    base, tuned = (RUNS / name for name in ("slow_dataset", "dataset_with_workers"))
    runs = ppprof.open(base), ppprof.open(tuned)
    assert [finding.facts for finding in ppprof.advise(base)] == [
        finding.facts for finding in ppprof.advise(runs[0])
    ]
    assert str(ppprof.diff(str(base), tuned).change) == str(ppprof.diff(*runs).change)
    for name, given in (("paths", (base, tuned)), ("runs", runs)):
        ppprof.write_report(given[0], tmp_path / f"{name}.html", baseline=given[1])
        ppprof.write_kineto(given[0], tmp_path / f"{name}.json")
    for suffix in (".html", ".json"):
        written = [(tmp_path / f"{name}{suffix}").read_bytes() for name in ("paths", "runs")]
        assert written[0] == written[1]


def test_importing_ppprof_loads_neither_polars_nor_paddle():
    code = (
        "import ppprof, sys; print({'polars', 'paddle', 'numpy'} & set(sys.modules)); ppprof.open"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "set()\n"


def test_a_folder_without_permission_costs_its_files_only(tmp_path, messages, monkeypatch):
    run_path = make_run(tmp_path, {0: 1})
    list_directory = os.scandir

    def refuse(path="."):
        if not isinstance(path, int) and Path(path).name == "summary":
            raise PermissionError(13, "Permission denied", str(path))
        return list_directory(path)

    monkeypatch.setattr(os, "scandir", refuse)
    assert ppprof.open(run_path).ranks == [0]
    assert messages == [
        f"{run_path / 'summary'}: cannot be listed (Permission denied); its files are left out"
    ]


@pytest.mark.parametrize("name", ["raw", "summary"])
def test_a_folder_that_is_a_link_is_skipped(tmp_path, messages, name):
    run_path = make_run(tmp_path / "run", {0: 1})
    write(run_path / trace_name(1).trace("pb"), *gpu_traces.training())
    (run_path / name).rename(tmp_path / "elsewhere")
    (run_path / name).symlink_to(tmp_path / "elsewhere")
    assert ppprof.open(run_path).ranks == ([1] if name == "raw" else [0, 1])
    expected = "expected the run's own files; to read files elsewhere, name them"
    assert messages == [f"{run_path}: skipped symbolic links: {name}; {expected}"]


def test_a_trace_that_is_a_link_is_skipped_in_a_run_and_read_elsewhere(tmp_path, messages):
    run_path = make_run(tmp_path / "run", {0: 1, 1: 1})
    raw = run_path / trace_name(1).raw
    raw.rename(tmp_path / raw.name)
    raw.symlink_to(tmp_path / raw.name)
    assert ppprof.open(run_path).ranks == [0]
    expected = "expected the run's own files; to read files elsewhere, name them"
    assert messages == [f"{run_path}/raw: skipped symbolic links: {raw.name}; {expected}"]
    (run_path / "manifest.json").unlink()  # a folder of traces of any origin
    assert ppprof.open(run_path).ranks == [0, 1]


def test_what_saved_tables_skipped_is_reported_once(tmp_path, messages):
    run_path = only_tables(tmp_path / "left")
    path = next(run_path.glob("summary/*.json"))
    path.write_text(path.read_text().replace('"lost": {}', '"lost": {"odd events": 3}'))
    run = ppprof.open(run_path)
    run.summary("op")
    run.summary("model")
    assert messages == [f"{path}: partly read: skipped 3 odd events"]
