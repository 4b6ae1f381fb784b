"""``tools/attach.py``: a script notices nothing, and its steps are in the run directory."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

import ppprof
from ppprof import rundir
from tests.integrations.arrival import arrived

ROOT = Path(__file__).parents[2]
ATTACH = str(ROOT / "tools/attach.py")
JOB = str(ROOT / "tests/integrations/script_job.py")
BLOCK = "Profiler:\n  enable: True\n  scheduler: [2, 5]\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory with ``on.yaml``, a block that is on."""
    (tmp_path / "on.yaml").write_text(BLOCK)
    return tmp_path


def python(folder: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A run in ``folder`` of a Python that finds ppprof where ``tools/attach.py`` tells it."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, "-W", "ignore", *command],
        cwd=folder,
        env={**inherited, "XDG_CACHE_HOME": str(folder / "cache"), **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


SAYS_ALL = """
import os, sys
import sibling
import __main__
print(sys.argv, sys.path, __name__, __file__, __spec__ and __spec__.name, __package__, __doc__, type(__loader__))
print(sorted(set(vars()) - {"__annotations__"}), __main__.sibling is sibling, sys.stdin.isatty())
print(sorted(name for name in os.environ if "PPPROF" in name), os.getcwd(), sys.flags)
"""


def test_a_script_sees_what_it_sees_by_itself(folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "sub/train.py").write_text(SAYS_ALL)
    (folder / "sub/sibling.py").write_text("")
    (folder / "linked.py").symlink_to("sub/train.py")
    for script in ("sub/train.py", str(folder / "sub/train.py"), "linked.py"):
        for arguments in ([], ["-c", "x", "--", "-o=1", "--help"]):
            alone = python(folder, script, *arguments)
            for dashes in (["--"], []):
                attached = python(folder, ATTACH, "-c", "on.yaml", *dashes, script, *arguments)
                assert attached.stdout == alone.stdout != ""
                assert (alone.returncode, attached.returncode) == (0, 0)


def test_a_module_too(folder: Path) -> None:
    (folder / "pack").mkdir()
    (folder / "pack/__init__.py").write_text("")
    (folder / "pack/__main__.py").write_text(
        SAYS_ALL.replace("import sibling", "from . import sibling")
    )
    (folder / "pack/sibling.py").write_text("")
    for name in ("pack", "pack.__main__"):
        alone = python(folder, "-m", name, "1", "-m")
        attached = python(folder, ATTACH, "-c", "on.yaml", "--", "-m", name, "1", "-m")
        assert attached.stdout == alone.stdout != ""


@pytest.mark.parametrize(
    "program",
    [
        "import sys; sys.exit()",
        "import sys; sys.exit(7)",
        "import sys; sys.exit('a message')",
        "def inner():\n    raise ValueError('x')\ninner()",
        "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise ValueError('x') from error",
        "import json; json.loads('{')",
        "def broken(:\n    pass",
        "import sys; sys.excepthook = lambda *seen: print(seen[0], seen[2].tb_next)\n1 / 0",
        "import os; os._exit(5)",
        "import atexit; atexit.register(print, 'bye'); print('hello')",
        "raise KeyboardInterrupt",
        "import threading\nthreading.Thread(target=lambda: 1 / 0).start()",
    ],
)
def test_it_ends_as_by_itself(folder: Path, program: str) -> None:
    (folder / "train.py").write_text(program)
    alone, attached = (
        python(folder, "train.py"),
        python(folder, ATTACH, "-c", "on.yaml", "train.py"),
    )
    assert attached.returncode == alone.returncode
    assert attached.stdout == alone.stdout
    unseen = (
        "ppprof: no step was seen: no optimizer stepped in this process, and number 1 ends a step\n"
    )
    assert attached.stderr.replace(unseen, "") == alone.stderr


def test_a_signal_ends_it_as_by_itself(folder: Path) -> None:
    (folder / "train.py").write_text("import time; print('up', flush=True); time.sleep(60)")
    for number in (signal.SIGINT, signal.SIGTERM):
        codes = []
        for command in (["train.py"], [ATTACH, "-c", "on.yaml", "train.py"]):
            with subprocess.Popen(
                [sys.executable, *command], cwd=folder, stdout=-1, stderr=-1
            ) as process:
                assert process.stdout is not None
                process.stdout.readline()
                time.sleep(0.1)
                process.send_signal(number)
                codes.append(process.wait(30))
        assert codes == [-number, -number]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-c", "on.yaml"], "no script to run; expected -- SCRIPT ARGUMENTS behind the options"),
        (["-c", "on.yaml", "no.py"], "no.py: No such file or directory; expected a Python script"),
        (["-c", "on.yaml", "--", "-m", "no"], "-m no: expected a module, or a package with a __main__"),
        (["-c", "on.yaml", "--optimizer", "0", "x.py"], "--optimizer: 0: expected 1 or more"),
        (["-c", "no.yaml", "x.py"], "no.yaml: No such file or directory"),
        (
            ["-c", "other.yaml", "x.py"],
            "other.yaml: expected a Profiler block, or its keys at the top level",
        ),
        (
            ["-c", "on.yaml", "-o", "Profiler.formats=[xml]", "-o", "Profiler.ranks=3", "x.py"],
            "-o Profiler.formats=[xml]: Profiler.formats: ['xml']: expected a list, each item json, "
            "json.gz or pb",
        ),
        (
            ["-c", "on.yaml", "-o", "Profiler.ranks=3", "x.py"],
            "-o Profiler.ranks=3: Profiler.ranks: ranks [3]: expected 0 to 0",
        ),
        (
            ["-c", "on.yaml", "-o", "Global.seed=1", "-o", "Profilr.enable=True", "x.py"],
            "-o Global.seed=1: Global.seed: no block but Profiler is looked at; expected "
            "Profiler.KEY=VALUE\n"
            "-o Profilr.enable=True: Profilr.enable: no block but Profiler is looked at; expected "
            "Profiler.KEY=VALUE",
        ),
        (
            ["--profiler-options", "batch_range=[60, 50]; stat=GPU", "x.py"],
            "-o Profiler.profiler_options=batch_range=[60, 50]; stat=GPU: Profiler.profiler_options: "
            "batch_range: '[60, 50]': expected [START, STOP], which records batches START to STOP-1\n"
            "-o Profiler.profiler_options=batch_range=[60, 50]; stat=GPU: Profiler.profiler_options: "
            'stat: unknown option; did you mean "state"?',
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_used_ends_it_before_the_script(
    folder: Path, arguments: Sequence[str], said: str
) -> None:
    (folder / "x.py").write_text("print('ran')")
    (folder / "other.yaml").write_text("Model: {hidden_size: 8}\n")
    done = python(folder, ATTACH, *arguments)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"{said}\n")


def test_without_enable_the_script_runs_by_itself(folder: Path) -> None:
    (folder / "off.yaml").write_text("scheduler: [2, 5]\n")
    (folder / "x.py").write_text("import sys; print('ppprof.capture.recorder' in sys.modules)")
    done = python(folder, ATTACH, "-c", "off.yaml", "x.py")
    assert (done.returncode, done.stdout) == (0, "False\n")
    assert done.stderr == "ppprof: Profiler.enable is False: the script runs as if by itself\n"


def steps_of(run: Path, rank: int) -> list[int]:
    lines = (run / rundir.steps_path(rank)).read_text().splitlines()
    return [json.loads(line)["step"] for line in lines]


def model_rows(run: Path, rank: int = 0) -> dict[str, int]:
    (summary,) = arrived(run, f"summary/rank_{rank:05d}_w0.json")
    tables = json.loads(summary.read_text())["tables"]
    return {row["name"]: row["calls"] for row in tables["model"]}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Losses of the job by itself."""
    pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
    folder = tmp_path_factory.mktemp("alone")
    assert python(folder, JOB, "losses").returncode == 0
    return (folder / "losses.0").read_text().splitlines()


@pytest.mark.paddle
@pytest.mark.launch
class TestTraining:
    def test_its_losses_are_its_own_and_a_window_is_recorded(
        self, folder: Path, alone: list[str]
    ) -> None:
        done = python(folder, ATTACH, "-c", "on.yaml", "--", JOB, "losses")
        assert done.returncode == 0, done.stderr
        assert (folder / "losses.0").read_text().splitlines() == alone
        run = folder / "profiler_log"
        assert steps_of(run, 0) == list(range(12))
        rows = model_rows(run)
        assert {name: rows[name] for name in ("ProfileStep", "Backward", "Optimization")} == {
            "ProfileStep": 3, "Backward": 3, "Optimization": 3,
        }  # fmt: skip
        assert rows["Dataloader"] >= 3
        assert "IPS Unit: steps/s" in done.stdout
        # One session, although the DataLoader's workers are forks of this process.
        assert len(list(folder.glob("profiler_log/run_*"))) == 0

    def test_an_exception_is_its_own_and_what_was_recorded_is_saved(self, folder: Path) -> None:
        wide = ["-o", "Profiler.scheduler=[1, 90]"]
        done = python(folder, ATTACH, "-c", "on.yaml", *wide, "--", JOB, "losses", "fail")
        assert done.returncode == 1
        (traceback,) = re.findall(r"^Traceback .*?^\w+Error: .*?$", done.stderr, re.M | re.S)
        assert re.findall(r'File "(.*?)"', traceback) == [JOB, JOB]
        assert len(ppprof.open(folder / "profiler_log").recordings) == 1
        assert steps_of(folder / "profiler_log", 0) == [0, 1, 2, 3, 4]

    def test_the_string_of_other_suites_is_a_block(self, folder: Path) -> None:
        text = "batch_range=[2, 4]; profile_path=theirs; state=CPU"
        done = python(folder, ATTACH, "--profiler-options", text, "--", JOB, "losses")
        assert done.returncode == 0, done.stderr
        assert steps_of(folder / "theirs", 0) == [0, 1, 2, 3]  # exit_on_finished
        assert not (folder / "losses.0").exists()
        assert model_rows(folder / "theirs")["ProfileStep"] == 2

    def test_on_two_ranks_too(self, folder: Path) -> None:
        launcher = ["-m", "paddle.distributed.launch", "--nproc_per_node", "2", "--log_dir"]
        by_itself = python(folder, *launcher, "log_alone", JOB, "alone")
        assert by_itself.returncode == 0, by_itself.stdout + by_itself.stderr
        script = [ATTACH, "-c", "on.yaml", "--", JOB, "attached"]
        done = python(folder, *launcher, "log_attached", *script)
        logs = "".join(path.read_text() for path in sorted(folder.glob("log_attached/workerlog.*")))
        assert done.returncode == 0, logs
        run = folder / "profiler_log"
        for rank in (0, 1):
            expected = (folder / f"alone.{rank}").read_text()
            assert (folder / f"attached.{rank}").read_text() == expected
            assert steps_of(run, rank) == list(range(12))
            assert model_rows(run, rank)["ProfileStep"] == 3
        assert rundir.read_manifest(run)["axes"]["degrees"][0] == 2
        assert len(arrived(run, "*.paddle_trace.json", 2)) == 2
