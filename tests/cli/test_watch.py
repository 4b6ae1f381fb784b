"""``ppprof watch``: what its screen says, and what a look reads."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import wcwidth

from ppprof.cli import watch as watch_command
from ppprof.report.text.layout import Layout, cut
from ppprof.report.text.watch import screen
from ppprof.run.watch import Watch
from ppprof.rundir import claim, read_manifest, write_manifest, write_node_marker
from ppprof.rundir.flight import FlightRing
from ppprof.rundir.liveness import LivenessRegistry
from ppprof.rundir.run_file import RunFile
from ppprof.rundir.triggers import TriggerResponse
from ppprof.topology import Topology
from tests.conftest import Cli
from tests.jobs.planted import COMMITTED

GRID = Topology.of(dp=2, pp=2, mp=2)
STEP_NS = 400_000_000


def lines(
    rank: int, first: int, num: int, slow: int | None = None, slow_ns: int = 300_000_000
) -> str:
    own_ns = slow_ns if rank == slow else 200_000_000
    return "".join(
        json.dumps(
            {
                "step": step,
                "batch_cost_ns": STEP_NS,
                "reader_cost_ns": 4_000_000,
                "num_tokens": 1000,
                "num_flops": 2 * 10**11,
                "host_peak_bytes": (1 << 30) + rank,
                "excluded": False,
                "window": None,
                "communication_ns": STEP_NS - own_ns + (rank + step) % 3 * 1_000_000,
            }
        )
        + "\n"
        for step in range(first, first + num)
    )


def job(folder: Path, topology: Topology = GRID, slow: int | None = None) -> Path:
    """A job whose ranks have ended 30 steps each."""
    run = claim(folder / "profiler_log")
    axes = {"order": topology.order, "degrees": topology.degrees}
    write_manifest(run, {"axes": axes, "device_peak_flops": 1e12})
    for rank in range(topology.world_size):
        LivenessRegistry(run, topology, rank)
        RunFile(run, f"steps/rank_{rank:05d}.jsonl").append(lines(rank, 0, 30, slow).encode())
    return run


def ring(run: Path, rank: int, num_ended: int, ago_s: float) -> None:
    FlightRing(run, rank).step(num_ended, time.time_ns() - int(ago_s * 1e9))


def test_the_screen_of_a_job(tmp_path: Path, cli: Cli) -> None:
    run = job(tmp_path, slow=5)
    out = cli("watch", run.parent / "profiler_log", "--once").out
    assert out.splitlines() == [
        f"8 ranks, dp 2 x pp 2 x mp 2: {cut(str(run), 80 - 29)}",
        "step 30  400 ms (400 ms to 400 ms)  running",
        "5,000 tokens/s  MFU 50.0%",
        *[line for line in out.splitlines() if line.startswith("waits: communication ")],
        "",
        "own work above peers': . <5%  + 5%  x 10%  # 20%",
        "dp0 pp0         ..",
        "dp0 pp1         ..",
        "dp1 pp0         .#",
        "dp1 pp1         ..",
        "",
        *out.splitlines()[11:],
    ]
    assert "rank 5 (dp1_pp0_sharding0_mp1) is slow: 99" in out or "is slow: 100 ms" in out
    assert "data 1.0%  peak memory: host 1 GiB (rank 7)" in out


def test_a_slow_rank_is_slow_in_the_steps_since_it_is(tmp_path: Path) -> None:
    """It works longer in the second half of 60 steps."""
    run = job(tmp_path)
    for rank in range(8):
        RunFile(run, f"steps/rank_{rank:05d}.jsonl").append(lines(rank, 30, 30, 5).encode())
    (found,) = Watch(run).look().findings
    assert found.endswith(" of a step, in 30 steps")


def test_a_rank_that_is_a_little_slow_is_named_once_enough_steps_say_so(tmp_path: Path) -> None:
    """It works 214 ms in four of five steps, the other one 200 ms; rank 1 has written five steps more.

    The score of its steps 2 to 4 is 10, five more steps multiply it by 1.75^4 / 4, and some 7 x 10^6 are an
    alarm: 1 x 10^5 after 60 steps, and 2 x 10^7 after 90.
    """
    run = job(tmp_path, Topology.of(dp=2))
    for rank in range(2):
        (run / f"steps/rank_{rank:05d}.jsonl").unlink()
    now_s, num_slow = 0.0, list[int]()
    watch = Watch(run, lambda: now_s)
    for first in range(0, 210, 30):
        for rank, begin in ((0, first), (1, first and first + 5)):
            steps = range(begin, first + 30 + 5 * rank)
            text = [lines(rank, step, 1, 1 if step % 5 else None, 214_000_000) for step in steps]
            RunFile(run, f"steps/rank_{rank:05d}.jsonl").append("".join(text).encode())
        now_s += 60
        num_slow.append(len(watch.look().findings))
    assert num_slow == [0, 0, 1, 1, 1, 1, 1]
    (finding,) = watch.look().findings
    # 14 ms, less 1 ms in two steps of three, and 2 ms more in the third: `lines` varies the waits.
    assert finding.startswith("rank 1 (dp1_pp0_sharding0_mp0) is slow: 13 ms more work of its own")
    assert finding.endswith(" in 208 steps")


def test_a_rank_whose_step_log_ends_does_not_hide_a_slow_one(tmp_path: Path) -> None:
    """As of one that met a full disk once: the others have written 80 s more."""
    run = job(tmp_path)
    for rank in range(1, 8):
        RunFile(run, f"steps/rank_{rank:05d}.jsonl").append(lines(rank, 30, 200, 5).encode())
    (found,) = Watch(run).look().findings
    assert found.startswith("rank 5 ")


def test_a_rank_in_a_window_of_its_own_does_not_undo_what_is_known(tmp_path: Path) -> None:
    run = job(tmp_path, slow=5)
    now_s = 0.0
    watch = Watch(run, lambda: now_s)
    assert len(watch.look().findings) == 1
    for rank in range(8):
        text = lines(rank, 30, 60, 5)
        text = text.replace('"window": null', '"window": 0') if rank == 0 else text
        RunFile(run, f"steps/rank_{rank:05d}.jsonl").append(text.encode())
    now_s += 60
    (found,) = watch.look().findings
    assert found.endswith(" in 88 steps")  # as in the test above, without the first two


@pytest.mark.parametrize(
    ("loss", "shown", "finding"),
    [("2.71828", "loss 2.718 at step 20", ""), ('"nan"', "loss nan at step 20", "the loss is nan")],
)
def test_the_last_loss_that_the_training_knew(
    tmp_path: Path, loss: str, shown: str, finding: str
) -> None:
    run = job(tmp_path)
    for rank in range(8):
        line = f'{{"step": 20, "batch_cost_ns": {STEP_NS}, "loss": {loss}}}\n'
        RunFile(run, f"steps/rank_{rank:05d}.jsonl").append(line.encode())
        RunFile(run, f"steps/rank_{rank:05d}.jsonl").append(lines(rank, 31, 90).encode())
    text = "\n".join(screen(Watch(run).look(), Layout(80), 24))
    assert shown in text
    assert finding in text


def test_speed_is_that_of_all_latest_steps(tmp_path: Path) -> None:
    """Steps of 400 and 1,200 ms take turns; the longer ones have three times the tokens, and the last is a short one."""
    run = job(tmp_path, Topology.of(dp=1))
    text = "".join(
        json.dumps(
            {
                "step": step,
                "batch_cost_ns": times * STEP_NS,
                "num_tokens": times * 1000,
                "num_samples": times * 2,
            }
        )
        + "\n"
        for step, times in enumerate([3, 1] * 10, 30)
    )
    RunFile(run, "steps/rank_00000.jsonl").append(text.encode())
    view = Watch(run).look()
    assert view.tokens_per_s == pytest.approx(2500)
    assert view.samples_per_s == pytest.approx(5)
    assert view.mfu is None


def test_the_first_step_of_a_resumed_training_does_not_count(tmp_path: Path) -> None:
    run = job(tmp_path, Topology.of(dp=1))
    first = json.dumps({"step": 700, "batch_cost_ns": 100 * STEP_NS}) + "\n"
    (run / "steps/rank_00000.jsonl").write_text(first + lines(0, 701, 5))
    assert Watch(run).look().range_ns == (STEP_NS, STEP_NS)


def test_infinite_losses_of_both_signs_are_no_number(tmp_path: Path) -> None:
    run = job(tmp_path)
    for rank, loss in enumerate(["inf", "-inf"]):
        line = f'{{"step": 30, "batch_cost_ns": {STEP_NS}, "loss": "{loss}"}}\n'
        RunFile(run, f"steps/rank_{rank:05d}.jsonl").append(line.encode())
    assert "the loss is nan at step 30" in Watch(run).look().findings


def test_a_loader_that_is_not_paddles_is_unknown(tmp_path: Path, cli: Cli) -> None:
    run = job(tmp_path, Topology.of(dp=1))
    log = run / "steps/rank_00000.jsonl"
    log.write_text(lines(0, 0, 30).replace('"reader_cost_ns": 4000000', '"reader_cost_ns": null'))
    out = cli("watch", run, "--once").out
    assert "waits: communication" in out
    assert "data" not in out.split("waits: ")[1].splitlines()[0]


def test_ranks_that_are_gone_and_behind(tmp_path: Path) -> None:
    run = job(tmp_path)
    for rank in range(8):
        ring(run, rank, 30 if rank == 6 else 31, ago_s=100)
    (run / "failed").mkdir()
    (run / "failed/00003.txt").write_text("RuntimeError: boom\x1b[31m\n")
    view = Watch(run).look()
    assert view.is_stalled
    assert 99 < view.idle_s < 130
    text = "\n".join(screen(view, Layout(80), 24))
    assert "rank 3 (dp0_pp1_sharding0_mp1): failed: RuntimeError: boom\\x1b[31m" in text
    assert "; rank 6 (dp1_pp1_sharding0_mp0) behind, unless it evaluates or saves: ppprof" in (
        text.replace("\n", " ")
    )
    assert "dp0 pp1         .X" in text
    assert "dp1 pp1         !." in text


@pytest.mark.parametrize(("ago_s", "is_stalled"), [(500, False), (700, True)])
def test_long_steps_that_are_all_in_windows_are_no_hang(
    tmp_path: Path, ago_s: int, is_stalled: bool
) -> None:
    """Ten steps of 60 s are 600 s."""
    run = job(tmp_path, Topology.of(dp=1))
    step = f'"batch_cost_ns": {60 * 10**9}, "window": 0'
    (run / "steps/rank_00000.jsonl").write_text(
        "".join(f'{{"step": {n}, {step}}}\n' for n in range(3))
    )
    ring(run, 0, 3, ago_s)
    view = Watch(run).look()
    assert (view.is_stalled, view.step_ns) == (is_stalled, None)


@pytest.mark.parametrize(("ago_s", "is_stalled"), [(250, False), (350, True)])
@pytest.mark.parametrize("first_step", [0, 700])
@pytest.mark.parametrize("num_ended", [0, 1])
def test_the_first_steps_have_300_seconds(
    tmp_path: Path, ago_s: int, is_stalled: bool, first_step: int, num_ended: int
) -> None:
    """Also those of a training that resumes."""
    run = job(tmp_path, Topology.of(dp=1))
    write_manifest(run, {**read_manifest(run), "first_step": first_step})
    (run / "steps/rank_00000.jsonl").unlink()
    ring(run, 0, first_step + num_ended, ago_s)
    assert Watch(run).look().is_stalled == is_stalled


def test_a_job_that_hangs_ahead_of_its_first_line_has_30_seconds(tmp_path: Path) -> None:
    """Steps are written every 10 s, at the end of one: of 15 short ones none may be on disk."""
    run = job(tmp_path, Topology.of(dp=1))
    (run / "steps/rank_00000.jsonl").unlink()
    ring(run, 0, 15, 40)
    assert Watch(run).look().is_stalled


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_job_that_is_started_again_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_gone: bool
) -> None:
    """Also if the first run's processes were killed on other machines, so that they may still run."""
    now_s = 1000.0
    run = job(tmp_path, Topology.of(dp=1))
    ring(run, 0, 30, ago_s=0)
    watch, named = Watch(run, lambda: now_s), Watch(run / "run_001", lambda: now_s)
    assert watch.look().num_ended == 30
    named.look()
    later = job(tmp_path, Topology.of(dp=1))
    assert later == run / "run_002"
    RunFile(later, "steps/rank_00000.jsonl").append(lines(0, 30, 5).encode())
    now_s += 20
    assert watch.look().run == run, "the first run may still go on"
    if is_gone:
        for entry in (run / "alive").iterdir():
            entry.unlink()
    now_s += 20
    watch.look()
    now_s += 20
    view = watch.look()
    assert (view.run, view.num_ended) == (later, 35)
    assert named.look().run == run
    requests: list[Path] = []
    monkeypatch.setattr(
        watch_command, "request_window", lambda run, *key: requests.append(run) or ("8", "")
    )
    page = watch_command._Page(run)
    page.request(watch.run)
    assert requests == [later]


def test_a_rank_that_fails_before_its_first_step_is_named(tmp_path: Path) -> None:
    run = claim(tmp_path / "profiler_log")
    write_manifest(run, {})
    LivenessRegistry(run, Topology.of(dp=1), 0).mark_failed(RuntimeError("boom"))
    text = "\n".join(screen(Watch(run).look(), Layout(80), 24))
    assert "rank 0: failed: RuntimeError: boom" in text
    assert "nothing to look at" not in text


def test_a_look_reads_only_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = job(tmp_path)
    watch = Watch(run)
    watch.look()
    read: list[int] = []
    read_on = RunFile.read_on

    def counting(file: RunFile, offset: int, most: int) -> tuple[bytes, int]:
        text, end = read_on(file, offset, most)
        read.append(len(text))
        return text, end

    monkeypatch.setattr(RunFile, "read_on", counting)
    new = lines(3, 30, 2).encode()
    partial = lines(3, 32, 1).encode()
    RunFile(run, "steps/rank_00003.jsonl").append(new + partial[:10])
    assert watch.look().num_ended == 32
    assert sum(read) == len(new)
    RunFile(run, "steps/rank_00003.jsonl").append(partial[10:])
    assert watch.look().num_ended == 33
    assert not watch.look().has_ended


@pytest.mark.parametrize(("size", "most", "expected"), [(0, 9, b""), (12, 9, b"bbb\nccc\n")])
def test_lines_that_are_too_many_are_left_out(
    tmp_path: Path, size: int, most: int, expected: bytes
) -> None:
    file = RunFile(tmp_path, "lines")
    file.append(b"aaa\nbbb\nccc\n"[:size])
    assert file.read_on(0, most) == (expected, size)
    file.append(b"d")
    assert file.read_on(size, most) == (b"", size)


@pytest.mark.parametrize("num_ranks", [1, 7, 1024, 10_000])
@pytest.mark.parametrize("height", [12, 24])
def test_any_number_of_ranks_fits_the_screen(tmp_path: Path, num_ranks: int, height: int) -> None:
    run = claim(tmp_path / "run")
    topology = (
        Topology.of(dp=num_ranks // 8, mp=8) if num_ranks % 8 == 0 else Topology.of(dp=num_ranks)
    )
    write_manifest(run, {"axes": {"order": topology.order, "degrees": topology.degrees}})
    (run / "steps").mkdir(exist_ok=True)
    (run / f"steps/rank_{num_ranks - 1:05d}.jsonl").write_text(lines(num_ranks - 1, 0, 20))
    drawn = screen(Watch(run).look(), Layout(80), height, ["keys"])
    assert len(drawn) <= height
    assert max(map(len, drawn)) <= 80
    assert drawn[-1] == "keys"


def test_the_head_keeps_its_facts_at_80_columns(tmp_path: Path) -> None:
    """A long path in wide characters loses its middle; a line that is too long goes on in the next one."""
    view = replace(
        Watch(job(tmp_path)).look(),
        run=tmp_path / ("实验" * 40) / "profiler_log",
        device_bytes=(61 << 30, 80 << 30, 387),
        host_bytes=(12 << 30, 387),
    )
    drawn = screen(view, Layout(80), 24)
    assert max(map(wcwidth.width, drawn)) <= 80
    assert drawn[0].startswith("8 ranks, dp 2 x pp 2 x mp 2: /")
    assert drawn[0].endswith("/profiler_log")
    assert "device 61 GiB of 80 GiB (rank 387), host 12 GiB (rank 387)" in " ".join(drawn)


def test_without_a_run(tmp_path: Path, cli: Cli) -> None:
    assert "manifest.json" in cli("watch", tmp_path, "--once", code=3).err


def test_keys_in_a_terminal(tmp_path: Path) -> None:
    run = job(tmp_path)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "ppprof", "watch", str(run)]
    child = subprocess.Popen(command, **dict.fromkeys(("stdin", "stdout", "stderr"), theirs))
    os.close(theirs)
    written = b""

    def read_until(text: bytes) -> None:
        nonlocal written
        while text not in written:
            written += os.read(ours, 1 << 16)

    read_until(b"q quit")
    os.write(ours, b"p")
    read_until(b"no window was requested: press w")
    os.write(ours, b"w")
    read_until(b"no profiler")
    os.write(ours, b"q")
    read_until(b"\x1b[?1049l")  # the screen from before
    assert child.wait() == 0
    os.close(ours)


@pytest.mark.parametrize(
    ("window", "says"),
    [(0, "window 0: {page}"), (7, "no page: try ppprof report {run} --window 7")],
)
def test_the_page_of_a_window_is_in_a_folder_that_others_cannot_foresee(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, window: int, says: str
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    run = COMMITTED / "slow_rank_and_link"
    page = watch_command._Page(run)
    page._request, page._window, page._wants_page = "requested", window, True
    while page._wants_page or page._process is not None:
        page.look()
        time.sleep(0.05)
    assert page.path is not None
    assert page.note == says.format(page=page.path, run=run)
    assert page.path.exists() == (window == 0)
    assert page.path.parent.stat().st_mode & 0o777 == 0o700
    assert page.path.parent.name != f"ppprof-{os.getpid()}"


def test_a_window_is_complete_without_the_ranks_of_other_disks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = job(tmp_path)
    write_node_marker(run, 0)
    write_node_marker(run, 1)
    answer = TriggerResponse("request", window=0, start=30, steps=5, ranks=[0, 1, 9])
    monkeypatch.setattr(watch_command, "read_response", lambda *key: answer)
    asked: list[int] = []
    monkeypatch.setattr(
        watch_command,
        "read_completion",
        lambda run, rank, window: asked.append(rank) or ([], ""),  # type: ignore[func-returns-value]
    )
    page = watch_command._Page(run)
    page._request = "7"
    page.look()
    assert asked == [0, 1]
    assert page.note == "window 0 is ready: p opens its page"


def test_a_window_that_is_requested_while_a_page_is_made_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(watch_command, "request_window", lambda *key: ("8", "5 steps"))
    monkeypatch.setattr(watch_command, "read_response", lambda *key: None)
    monkeypatch.setattr(watch_command, "read_completion", lambda *key: ([], ""))
    run = COMMITTED / "slow_rank_and_link"
    page = watch_command._Page(run)
    page._request, page._window, page._wants_page = "7", 7, True
    page.look()
    assert page.note == "window 7: making its page"
    page.request(run)
    while page._process is not None:
        page.look()
        time.sleep(0.05)
    assert page.note.endswith("--window 7")
    assert page._request == "8"
