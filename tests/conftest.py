"""What tests of several rooms share."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import hypothesis
import pytest
from filelock import FileLock

pytest.register_assert_rewrite("tests.fixtures", "tests.oracles", "tests.jobs")

from ppprof.trace.fastpath import core  # noqa: E402
from tests import device  # noqa: E402
from tests.jobs.launching import CONFIGS, run, train  # noqa: E402

collect_ignore = [  # programs of other environments
    "oracles/capture_torch.py",
    "jobs/trainer_job.py",
]

_HEALTHY = [
    hypothesis.HealthCheck.too_slow,  # a busy machine is no failure
    hypothesis.HealthCheck.function_scoped_fixture,  # tmp_path: every example writes its files anew
]
# `dev` draws other examples at each run. `ci` draws the same ones each time, so that a commit is
# judged by what it changes. `full`, of `make test-all`, draws a hundred times as many.
for _name, _examples in {"dev": 20, "ci": 10, "full": 1000}.items():
    hypothesis.settings.register_profile(
        _name,
        max_examples=_examples,
        deadline=None,
        derandomize=_name == "ci",
        print_blob=True,
        suppress_health_check=_HEALTHY,
    )
hypothesis.settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if "CI" in os.environ else "dev")
)

Make = Callable[[Path], None]


_LOGGER = logging.getLogger("ppprof")
_HANDLERS = _LOGGER.handlers[:]


def pytest_configure() -> None:
    """Let programs that tests start end by signals, also if the tests run under ``nohup`` or ``&``."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGXCPU):
        is_main_thread = threading.current_thread() is threading.main_thread()
        if is_main_thread and signal.getsignal(number) is signal.SIG_IGN:
            is_interrupt = number is signal.SIGINT
            signal.signal(number, signal.default_int_handler if is_interrupt else signal.SIG_DFL)


@pytest.fixture(autouse=True)
def _logger() -> Iterator[None]:
    """Give each test the logger "ppprof" as it is after import.

    A command or `attach` installs a handler, also in a fixture that several tests share.
    """
    _reset_logger()
    yield
    _reset_logger()


def _reset_logger() -> None:
    _LOGGER.handlers[:] = _HANDLERS
    _LOGGER.propagate = True
    _LOGGER.setLevel(logging.NOTSET)


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Make], Path]:
    """``once(name, make)``: a folder that ``make`` fills once in the whole test run.

    Every worker of pytest-xdist has session fixtures of its own; whichever needs the folder first
    makes it, and the others wait for that.
    """
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent

    def made(name: str, make: Make) -> Path:
        folder, is_made = base / f"shared_{name}", base / f"shared_{name}.made"
        with FileLock(base / f"shared_{name}.lock"):
            if not is_made.exists():
                shutil.rmtree(folder, ignore_errors=True)  # of a worker that failed in the middle
                folder.mkdir()
                make(folder)
                is_made.touch()
        return folder

    return made


@pytest.fixture(scope="session")
def test_device(once: Callable[[str, Make], Path]) -> Callable[..., dict[str, str]]:
    """``test_device(STUCK=3)``: the environment of a program with the device of `tests.device`."""

    def make(folder: Path) -> None:
        device.build(folder)

    plugin = once("test_device", make) / f"lib{device.NAME}.so"
    return lambda **switches: device.variables(plugin, **switches)


@pytest.fixture
def messages() -> Iterator[list[str]]:
    """Messages that the library logs during a test, so far."""
    logged: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: logged.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("ppprof")
    logger.addHandler(handler)
    yield logged
    logger.removeHandler(handler)


class Printed(NamedTuple):
    """What a command of ppprof printed."""

    out: str
    err: str


class Cli:
    """Runs commands: ``out, err = cli("summary", path, code=3)``."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: object, code: int = 0, process: bool = False) -> Printed:
        """Run a command that has to end with ``code``, here or in a new process."""
        arguments = [*map(str, words)]
        if process:
            command = [sys.executable, "-m", "ppprof", *arguments]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120)
            ended, printed = done.returncode, Printed(done.stdout, done.stderr)
        else:
            from ppprof.cli import main

            self._capsys.readouterr()
            ended = main(arguments)
            printed = Printed(*self._capsys.readouterr())
        assert ended == code, printed
        return printed

    def quiet(self, *words: object) -> str:
        """Return stdout of a command that ends with 0 and prints nothing on stderr."""
        out, err = self(*words)
        assert err == ""
        return out


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """The one way in which tests run a command."""
    return Cli(capsys)


@pytest.fixture(scope="session")
def two_rank_job(once: Callable[[str, Make], Path]) -> tuple[Path, str]:
    """Run directory and output of a data parallel training: two windows, every table."""
    schedule = "{skip_first: 1, closed: 0, ready: 1, record: 3, repeat: 2}"
    settings = (
        *("Profiler.enable=True", f"Profiler.scheduler={schedule}", "Profiler.detailed=True"),
        *("Profiler.formats=[json, json.gz, pb]", "Profiler.time_unit=us"),
    )
    return _trained(once, "two_rank_job", "pretrain_gpt_tiny_cpu_dp2", 2, *settings)


@pytest.fixture(scope="session")
def hybrid_job(once: Callable[[str, Make], Path]) -> tuple[Path, str]:
    """Run directory and output of ``make profile-hybrid``: dp2 x mp2 x pp2 on eight ranks."""
    config = "pretrain_gpt_tiny_cpu_dp2_mp2_pp2"
    return _trained(once, "hybrid_job", config, 8, "Profiler.enable=True")


def _trained(
    once: Callable[[str, Make], Path], name: str, config: str, processes: int, *settings: str
) -> tuple[Path, str]:
    def make(folder: Path) -> None:
        path = CONFIGS / f"{config}.yaml"
        done = train(folder, *settings, config=path, processes=processes, code=0)
        (folder / "printed").write_text(done.stdout + done.stderr)

    folder = once(name, make)
    return folder / "profiler_log", (folder / "printed").read_text()


@pytest.fixture(scope="session")
def cpu_capture(once: Callable[[str, Make], Path]) -> Path:
    """Directory of a real CPU capture and of Paddle's tables for it (oracles/capture_cpu.py)."""

    def make(folder: Path) -> None:
        run(folder, "-m", "tests.oracles.capture_cpu", folder)

    return once("cpu_capture", make)


@pytest.fixture(params=[core.NATIVE, core.PYTHON])
def each_core(request, monkeypatch) -> str:
    """Run the test with either core that reads fixed layouts; return the core's name."""
    if request.param == core.NATIVE and core.load(core.FOLDER)[0] is None:
        pytest.skip("needs the compiled core: run `python tools/build_core.py`")
    monkeypatch.setenv(core.VARIABLE, request.param)
    return request.param
