from __future__ import annotations

import json
from datetime import datetime
from functools import partial
from pathlib import Path

import pytest

import ppprof
from ppprof.errors import UsageError
from ppprof.messages import Message
from ppprof.rundir import TraceName, claim, write_manifest
from ppprof.rundir.clocks import Clock, Reading, clocks_path, line_of
from ppprof.topology import Topology
from tests.fixtures.timeline import EPOCH_NS, Thread, span, write
from tests.oracles.trace_event_format import check, load

UNKNOWN = (
    "{}: no clock offset is known for {}; their events keep their machine's clock and may be "
    "misaligned with ranks on other hosts"
)


def training(first_step: int = 1) -> Thread:
    """Two steps, each with an all_reduce over dp and a short operator."""
    peers = "axis=dp group=0 bytes=8 dtype=float32 peers=0,2"
    steps = (
        span("ProfileStep", f"ProfileStep#{step}", 1000 * step, 1000 * step + 900).around(
            span("Operator", "relu", 1000 * step + 100, 1000 * step + 110),
            span("Communication", f"all_reduce[{peers}]", 1000 * step + 300, 1000 * step + 600),
        )
        for step in range(first_step, first_step + 2)
    )
    return Thread(7, "MainThread", tuple(steps))


def make_run(
    log: Path, degrees: dict[str, int], recorded: range | None = None, **profiler: object
) -> Path:
    """A run of a grid, two ranks a host; every rank but 0 has its clock measured."""
    topology = Topology.of(**degrees)
    run = claim(log)
    write_manifest(
        run,
        {
            "profiler": {"ranks": "all", **profiler},
            "axes": {"order": list(topology.order), "degrees": list(topology.degrees)},
            "ranks": [
                {"rank": rank, "host": f"host-{'abcd'[rank // 2]}"}
                for rank in range(topology.world_size)
            ],
        },
    )
    for rank in recorded or range(topology.world_size):
        name = TraceName(rank, topology.label(rank), datetime(2026, 11, 20, 20, 15, 30), 0)
        write(run / name.raw, training())
        if rank:
            measure(run, rank, 0)
    return run


def measure(run: Path, rank: int, offset_ns: int) -> None:
    path = run / clocks_path(rank)
    path.parent.mkdir(exist_ok=True)
    path.write_text(line_of(Reading(EPOCH_NS, offset_ns, 5)))


@pytest.fixture
def merge(cli):
    return partial(cli, "merge")


def processes(path: Path) -> list[str]:
    """Names in the order in which viewers show them."""
    events = load(path)["traceEvents"]
    name = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    place = {e["pid"]: e["args"]["sort_index"] for e in events if e["name"] == "process_sort_index"}
    return [name[pid] for pid in sorted(name, key=place.__getitem__)]


def test_all_ranks_named_and_sorted_by_coordinates(tmp_path, merge):
    run, out = make_run(tmp_path / "log", {"dp": 2, "mp": 2}), tmp_path / "out.json"
    said = merge(run, "-o", out)
    assert processes(out) == [
        "rank 0 · dp0 pp0 mp0 · host-a",
        "rank 1 · dp0 pp0 mp1 · host-a",
        "rank 2 · dp1 pp0 mp0 · host-b",
        "rank 3 · dp1 pp0 mp1 · host-b",
    ]
    arrows = check(load(out)).values()
    assert [[event["pid"] - 100_000 for _, event in arrow] for arrow in arrows] == [[0, 2], [0, 2]]
    assert said.out == ""
    assert said.err == f"{out}: ranks 0-3, 24 events, {out.stat().st_size} bytes\n"


def test_the_newest_run_is_merged_and_said(tmp_path, merge):
    make_run(tmp_path / "log", {"dp": 2})
    newest = make_run(tmp_path / "log", {"dp": 3})
    err = merge(f"{tmp_path}/log/", "-o", tmp_path / "out.json").err
    assert len(processes(tmp_path / "out.json")) == 3
    first = err.splitlines()[0]
    assert first == f"{tmp_path}/log/: the newest run is {newest}"


def test_a_host_is_called_as_it_calls_itself(tmp_path, merge):
    """The launcher knows addresses; a rank that wrote its node's name has a name."""
    run = make_run(tmp_path / "log", {"dp": 2})
    (run / "nodes").mkdir()
    (run / "nodes" / "1.gpu-node.example").touch()
    merge(run, "-o", tmp_path / "out.json")
    assert processes(tmp_path / "out.json") == [
        "rank 0 · dp0 pp0 mp0 · host-a",
        "rank 1 · dp1 pp0 mp0 · gpu-node.example",
    ]


def test_names_have_axes_of_degree_1_of_dp_pp_and_mp_only(tmp_path, merge):
    run = make_run(tmp_path / "log", {"sharding": 2, "sep": 2})
    merge(run, "-o", tmp_path / "out.json")
    assert processes(tmp_path / "out.json")[2] == "rank 2 · dp0 pp0 sharding1 sep0 mp0 · host-b"


@pytest.mark.parametrize(
    ("selector", "ranks"),
    [
        ("all", [0, 1, 2, 3]),
        ("0,2-3", [0, 2, 3]),
        ("3", [3]),
        ("mp=1", [1, 3]),
        ("mp=1, dp=0", [1]),
        ("dp=all,mp=0", [0, 2]),
    ],
)
def test_ranks_are_selected_as_in_the_config(selector, ranks, tmp_path, merge):
    run, out = make_run(tmp_path / "log", {"dp": 2, "mp": 2}), tmp_path / "out.json"
    merge(run, "-o", out, "--rank", selector)
    assert [int(name.split()[1]) for name in processes(out)] == ranks
    assert len(check(load(out))) == (2 if {0, 2} <= set(ranks) else 0)


def test_steps_and_shortest_length(tmp_path, merge):
    run, out = make_run(tmp_path / "log", {"dp": 2}), tmp_path / "out.json.gz"
    merge(run, "-o", out, "--steps", "2:", "--min-dur", "0.011us")
    slices = [e for e in load(out)["traceEvents"] if e["ph"] == "X"]
    assert [e["name"] for e in slices] == ["ProfileStep#2", "all_reduce"] * 2
    merge(run, "-o", out, "--force", "--steps", "1", "--min-dur", "10 ns")
    slices = [e for e in load(out)["traceEvents"] if e["ph"] == "X"]
    assert [e["name"] for e in slices] == ["ProfileStep#1", "relu", "all_reduce"] * 2


def test_clocks_of_the_run_are_used(tmp_path, merge):
    run, out = make_run(tmp_path / "log", {"dp": 2}), tmp_path / "out.json"
    measure(run, 1, 812_000_000)
    merge(run, "-o", out)
    first, second = (
        next(e["ts"] for e in load(out)["traceEvents"] if e["ph"] == "X" and e["pid"] == pid)
        for pid in (100_000, 100_001)
    )
    assert second - first == 812_000


def test_clocks_can_be_given(tmp_path):
    run, out = ppprof.open(make_run(tmp_path / "log", {"dp": 2})), tmp_path / "out.json"
    clock = Clock(1, (Reading(EPOCH_NS, 3_000, 9),), "collectives")
    made = run.merge(out, clocks={0: Clock(0, (Reading(EPOCH_NS, 1_000, 9),)), 1: clock})
    assert (made.path, made.ranks, made.num_events) == (out, (0, 1), 12)
    times = [e["ts"] for e in load(out)["traceEvents"] if e["name"] == "ProfileStep#1"]
    assert times[1] - times[0] == 2


def test_a_rank_without_a_measured_clock_is_reported(tmp_path, merge):
    run, out = make_run(tmp_path / "log", {"dp": 6}), tmp_path / "out.json"
    for rank in (1, 4, 5):  # rank 1 has the clock of rank 0, which is on its host
        (run / clocks_path(rank)).unlink()
    assert merge(run, "-o", out).err.splitlines()[0] == UNKNOWN.format(run, "ranks 4-5")
    err = merge(run, "-o", out, "--force", "--rank", "4").err  # no other rank to align with
    assert "clock" not in err


def test_a_broken_rank_is_named_and_left_out(tmp_path, merge):
    run, out = make_run(tmp_path / "log", {"dp": 4}), tmp_path / "out.json"
    (broken,) = run.glob("raw/rank_00001_*.pb")
    broken.write_bytes(b"\0" * 100)
    err = merge(run, "-o", out).err
    assert [int(name.split()[1]) for name in processes(out)] == [0, 2, 3]
    left_out = f"rank 1 is left out: {broken}: begins with zeros"
    assert err.startswith(left_out)


def test_a_rank_that_left_no_trace_is_named(tmp_path, merge):
    run, out = make_run(tmp_path / "log", {"dp": 4}, range(3)), tmp_path / "out.json"
    assert merge(run, "-o", out).err.startswith(f"{run}: no trace of rank 3;")


def test_a_rank_that_was_not_to_record_is_not_missed(tmp_path, merge):
    run = make_run(tmp_path / "log", {"dp": 4}, range(3), ranks="0-2")
    assert "no trace of" not in merge(run, "-o", tmp_path / "out.json").err


def test_where_no_rank_can_be_read_nothing_is_written(tmp_path, merge):
    run, out = make_run(tmp_path / "log", {"dp": 2}), tmp_path / "out.json"
    for path in run.glob("raw/*.pb"):
        path.write_bytes(b"")
    assert [line[:21] for line in merge(run, "-o", out, code=3).err.splitlines()] == [
        "rank 0 is left out: /",
        "rank 1 is left out: /",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


def test_tables_without_traces_are_no_input(tmp_path, merge):
    run = make_run(tmp_path / "log", {"dp": 2})
    for path in run.glob("raw/*.pb"):
        (run / f"summary/rank_{path.name[5:10]}_w0.json").write_text("{}")
        path.unlink()
    err = merge(run, "-o", tmp_path / "out.json", code=3).err
    assert "only tables are left of this window, no trace" in err


def test_traces_without_a_manifest_have_numbers_only(tmp_path, merge):
    for worker in "ab":
        write(tmp_path / f"host{worker}_time_2026.paddle_trace.pb", training())
    out = tmp_path / "out.json"
    err = merge(tmp_path, "-o", out).err
    assert processes(out) == ["rank 0 · hosta", "rank 1 · hostb"]
    assert err.splitlines()[:2] == [
        str(Message("unrelated", paths=tmp_path, traces="traces 0-1")),
        UNKNOWN.format(tmp_path, "trace 1"),
    ]
    merge(tmp_path, "-o", out, "--force", "--rank", "1")
    assert processes(out) == ["rank 1 · hostb"]
    err = merge(tmp_path, "-o", out, "--force", "--rank", "dp=1", code=2).err
    assert "coordinates need a manifest" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rank", "9"], 'ranks "9": expected 0 to 3'),
        (["--rank", "3"], "{run}: no rank 3; it has ranks 0-2"),
        (["--rank", "dp=x"], "dp: 'x': expected all or 0 to 3"),
        (["--rank", "tp=1"], "unknown axis ['tp']; expected some of"),
        (["--steps", "7:"], "{run}: no step of 7:; it has steps 1-2"),
    ],
)
def test_what_is_not_there_is_refused(arguments, message, tmp_path, merge):
    run = make_run(tmp_path / "log", {"dp": 4}, range(3))
    err = merge(run, "-o", tmp_path / "out.json", *arguments, code=2).err
    assert message.format(run=run) in err
    assert not (tmp_path / "out.json").exists()


def test_all_problems_are_reported_at_once_before_anything_is_read(tmp_path, merge):
    out = tmp_path / "out.txt"
    arguments = ["--rank", "mp=0,mp=1", "--steps", "5:2", "--min-dur", "50"]
    assert merge(tmp_path / "missing", "-o", out, *arguments, code=2).err.splitlines() == [
        '--rank: "mp=0,mp=1": mp is given twice; expected for example "pp=0,dp=all"',
        "--steps: steps '5:2': 2 is not after 5; no step is in it",
        "--min-dur: '50': expected a duration with its unit: 50us, 0.5ms, 1s",
        f"-o {out}: expected a name that ends in .json or .json.gz",
    ]


def test_what_is_there_is_not_overwritten(tmp_path, merge):
    run, out = make_run(tmp_path / "log", {"dp": 2}), tmp_path / "out.json"
    out.write_text("mine")
    err = merge(run, "-o", out, code=2).err
    assert out.read_text() == "mine"
    assert err == f"-o {out}: exists; --force replaces it\n"
    merge(run, "-o", out, "--force")
    assert json.loads(out.read_bytes())["displayTimeUnit"] == "ms"


def test_a_trace_is_not_written_over_itself(tmp_path, cli, merge):
    run = make_run(tmp_path / "log", {"dp": 2})
    (raw,) = run.glob("raw/rank_00000_*.pb")
    trace = run / TraceName.parse(raw).trace("json")
    cli("convert", raw, trace)
    content = trace.read_bytes()
    err = merge(run, "-o", trace, "--force", code=2).err
    assert err == f"-o {trace}: this command reads it; write to another file\n"
    assert trace.read_bytes() == content


def test_a_missing_directory_is_reported(tmp_path, merge):
    run, out = make_run(tmp_path / "log", {"dp": 2}), tmp_path / "missing" / "out.json"
    assert merge(run, "-o", out, code=2).err == f"-o {out}: {out.parent} is not a directory\n"


def test_the_library_takes_every_selector(tmp_path):
    run = ppprof.open(make_run(tmp_path / "log", {"dp": 2, "mp": 2}))
    for selector in ([1, 3], {"mp": 1}, "1,3"):
        assert run.merge(tmp_path / "out.json", ranks=selector).ranks == (1, 3)
    with pytest.raises(UsageError, match="expected 0 to 3"):
        run.merge(tmp_path / "out.json", ranks=[7])


def test_the_old_name_of_an_option_still_works(tmp_path, merge):
    run, out = make_run(tmp_path / "log", {"dp": 2}), tmp_path / "out.json"
    err = merge(run, "-o", out, "--ranks", "1").err
    warning, written = err.splitlines()
    assert warning == "--ranks is now called --rank; the next version will reject --ranks"
    assert written.startswith(f"{out}: rank 1, ")
