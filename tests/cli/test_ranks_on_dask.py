"""``ppprof ranks --dask`` on real clusters: schedulers and workers that are processes of their own."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import pytest

import ppprof
from ppprof.cli import executors, main
from ppprof.errors import UsageError
from tests.fixtures.pipelines import one_f_one_b
from tests.fixtures.timeline import write

distributed = pytest.importorskip("distributed", reason="needs the distributed package")

ROOT = Path(__file__).parents[2]
NUM_RANKS = 4


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Rank r has r + 1 steps."""
    path = tmp_path_factory.mktemp("run")
    for rank in range(NUM_RANKS):
        (stage,) = one_f_one_b(1, 2, meets=True, steps=rank + 1)
        write(path / f"rank_{rank:05}_dp{rank}_time_20261120T201530_000.pb", stage)
    return path


@contextlib.contextmanager
def cluster(folder, num_workers, *worker_options, has_ppprof=True):
    """Its address; workers run in a directory of their own, as on another machine."""
    address_file = folder / "scheduler.json"
    # Given up at once when it has cost a worker: Dask's 3 more attempts take seconds each.
    path = str(ROOT) if has_ppprof else hiding_ppprof(folder)
    env = {
        **os.environ,
        "PYTHONPATH": path,
        "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "1",
    }
    dask = [sys.executable, "-m", "dask"]
    common = ["--no-dashboard", "--scheduler-file", str(address_file)]
    log = (folder / "log").open("wb")
    with log, contextlib.ExitStack() as stack:

        def start(*command):
            process = subprocess.Popen(
                [*dask, *command, *common], env=env, cwd=folder, stdout=log, stderr=log
            )
            stack.callback(process.wait)
            stack.callback(process.terminate)
            return process

        start("scheduler", "--host", "127.0.0.1", "--port", "0")
        until(address_file.exists)
        if num_workers:
            start("worker", "--nworkers", str(num_workers), "--nthreads", "1", *worker_options)
        yield (
            "tcp://" + address_file.read_text().partition('"address": "tcp://')[2].partition('"')[0]
        )


def hiding_ppprof(folder):
    """A path on which an installed ppprof cannot be found."""
    (folder / "sitecustomize.py").write_text(
        "import sys\n"
        "class Hides:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] == 'ppprof':\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Hides())\n"
    )
    return str(folder)


def until(true, patience_s=30):
    deadline = time.monotonic() + patience_s
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """Of a cluster of two workers, each a process that is started again when it dies."""
    with cluster(tmp_path_factory.mktemp("cluster"), 2) as address:
        with distributed.Client(address, set_as_default=False) as client:
            client.wait_for_workers(2, timeout=30)
        yield address


def worker(trace):
    return os.getpid(), trace.events["step"].n_unique()


def slowly(trace):
    time.sleep(0.5)
    return worker(trace)


def dying(trace, marker=None):
    """Ends its process on rank 2; with a marker only the first time."""
    if trace.events["step"].n_unique() == 3 and not (marker and marker.exists()):
        if marker:
            marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return worker(trace)


@pytest.mark.jobs
def test_a_cluster_finds_the_same(run, address, cli, capsys, monkeypatch):
    """Though its workers have another working directory."""
    monkeypatch.chdir(run.parent)
    command = ["ranks", run.name, "--format", "csv", "--by", "rank,step"]
    alone, _ = cli(*command)
    there, err = cli(*command, "--dask", address)
    assert there == alone
    assert err == ""
    assert len(alone.splitlines()) == 1 + 1 + 2 + 3 + 4


@pytest.mark.all
def test_two_workers_share_the_ranks(run, address):
    with executors.dask(address) as executor:
        made = [result.value for result in ppprof.open(run).map_windows(slowly, executor=executor)]
    assert [num_steps for _, num_steps in made] == [1, 2, 3, 4]
    processes = {pid for pid, _ in made}
    assert len(processes) == 2
    assert os.getpid() not in processes


@pytest.mark.all
def test_a_broken_trace_is_named_and_left_out(run, address, tmp_path, cli):
    for path in run.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    broken = next(tmp_path.glob("rank_00001*"))
    broken.write_bytes(b"\xff broken")
    out, err = cli("ranks", tmp_path, "--dask", address, "--format", "csv")
    assert [line.split(",")[0] for line in out.splitlines()] == ["rank", "0", "2", "3"]
    assert str(broken) in err


@pytest.mark.all
def test_a_rank_whose_worker_dies_is_tried_again(run, address, tmp_path):
    work = partial(dying, marker=tmp_path / "died")
    with executors.dask(address) as executor:
        made = [result.value[1] for result in ppprof.open(run).map_windows(work, executor=executor)]
    assert made == [1, 2, 3, 4]
    assert (tmp_path / "died").exists()


@pytest.mark.all
def test_a_rank_that_costs_every_worker_is_named_and_left_out(run, address, messages):
    with executors.dask(address) as executor:
        opened = ppprof.open(run)
        found = {result.recording.rank for result in opened.map_windows(dying, executor=executor)}
    left_out = {
        rank for rank in range(NUM_RANKS) for line in messages if f"rank_0000{rank}_" in line
    }
    assert 2 in left_out  # and whom Dask had sent to the same workers, if it was so unlucky
    assert (found | left_out, found & left_out) == (set(range(NUM_RANKS)), set())
    assert all(
        "the process that was reading it died: Attempted to run" in line for line in messages
    )


def test_what_a_process_pool_loses_is_named(run, messages):
    """It does not start a process again: what it still had to do is lost too."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor:
        opened = ppprof.open(run)
        found = {result.recording.rank for result in opened.map_windows(dying, executor=executor)}
        left_out = {rank for rank in range(4) for line in messages if f"rank_0000{rank}_" in line}
        again = opened.map_windows(worker, executor=executor)
        with pytest.raises(ppprof.errors.InputError, match="died"):
            list(again)
    assert found == {0, 1}
    assert left_out == {2, 3}


@pytest.mark.all
def test_what_is_left_when_all_workers_are_gone_for_good(run, tmp_path, monkeypatch, messages):
    monkeypatch.setattr(executors, "_ABSENT_S", 0.5)
    monkeypatch.setattr(executors, "_LOOK_S", 0.1)
    with cluster(tmp_path, 1, "--no-nanny") as address, executors.dask(address) as executor:
        opened = ppprof.open(run)
        found = {result.recording.rank for result in opened.map_windows(dying, executor=executor)}
    assert 2 not in found
    assert any("every worker" in line for line in messages)
    assert len(found) + len(messages) == NUM_RANKS


@pytest.mark.all
def test_a_scheduler_without_workers(run, tmp_path, cli, monkeypatch):
    monkeypatch.setattr(executors, "ANSWER_S", 1)
    with cluster(tmp_path, 0) as address:
        assert (
            f"no worker for 1 s; start some: dask worker {address}"
            in cli("ranks", run, "--dask", address, code=2).err
        )


@pytest.mark.all
def test_a_cluster_without_ppprof(run, tmp_path, cli):
    with cluster(tmp_path, 1, has_ppprof=False) as address:
        (line,) = cli("ranks", run, "--dask", address, code=2).err.splitlines()
    assert line.startswith(f"--dask {address}: no ppprof on the scheduler, tcp://127.0.0.1:")


@pytest.mark.parametrize("where", ["tcp://127.0.0.1:9", "127.0.0.1", "nonsense://x", ""])
def test_an_address_without_a_scheduler(where, run, capsys, monkeypatch):
    monkeypatch.setattr(executors, "ANSWER_S", 1)
    assert main(["ranks", str(run), "--dask", where]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"--dask {where}: no scheduler answers within 1 s: ")
    assert "tcp://10.0.0.1:8786" in line


def test_a_client_that_found_no_scheduler_is_not_left_to_be_collected(run, cli, monkeypatch):
    """Its `__del__` takes a lock that another client holds while it starts: a deadlock."""
    monkeypatch.setattr(executors, "ANSWER_S", 1)
    of_other_tests = clients()
    gc.disable()
    try:
        cli("ranks", run, "--dask", "tcp://127.0.0.1:9", code=2)
        left = [each for each in clients() if not any(each is other for other in of_other_tests)]
    finally:
        gc.enable()
    assert left == []


def clients():
    return [each for each in gc.get_objects() if type(each).__name__ == "Client"]


def test_a_loop_that_does_not_start(run, cli, monkeypatch):
    """As on an overloaded machine: distributed asserts, without a message."""

    def client(*_args, **_kwargs):
        raise AssertionError

    monkeypatch.setattr("distributed.Client", client)
    error = cli("ranks", run, "--dask", "tcp://127.0.0.1:9", code=2).err
    assert "no scheduler answers within 10 s: AssertionError; expected" in error


def test_without_distributed_it_is_said_what_to_install(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(UsageError, match=r'pip install "ppprof\[dask\]"'):
        executors.dask("tcp://127.0.0.1:9").__enter__()


def test_one_place_to_read(run, cli):
    assert (
        "--workers, --dask: both say where to read"
        in cli("ranks", run, "--dask", "tcp://x:1", "--workers", "2", code=2).err
    )
