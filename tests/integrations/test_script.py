"""``tools/attach.py``: a script notices nothing, and its steps are in the run directory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.fixtures.tiers import one_in

ROOT = Path(__file__).parents[2]
ATTACH = str(ROOT / "tools/attach.py")
BLOCK = "Profiler:\n  enable: True\n  scheduler: [2, 5]\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory with ``on.yaml``, an enabled block."""
    (tmp_path / "on.yaml").write_text(BLOCK)
    return tmp_path


def python(folder: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python in ``folder``; it finds ppprof only through ``tools/attach.py``."""
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


@pytest.mark.parametrize(
    "script", one_in(3, ["sub/train.py", "{folder}/sub/train.py", "linked.py"])
)
def test_a_script_sees_what_it_sees_by_itself(folder: Path, script: str) -> None:
    (folder / "sub").mkdir()
    (folder / "sub/train.py").write_text(SAYS_ALL)
    (folder / "sub/sibling.py").write_text("")
    (folder / "linked.py").symlink_to("sub/train.py")
    script = script.format(folder=folder)
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


SAYS_WHAT_IS_LOADED = """
import os, sys
print({"numpy", "paddle"} & set(sys.modules))
"""


def test_libraries_are_loaded_by_the_script(folder: Path) -> None:
    """They read the environment, which the script may set first."""
    (folder / "train.py").write_text(SAYS_WHAT_IS_LOADED)
    assert python(folder, ATTACH, "-c", "on.yaml", "train.py").stdout == "set()\n"


@pytest.mark.parametrize("code", ["import sys; print(sys.argv)", "import not_there", "1 / 0"])
def test_the_package_of_a_module_is_imported_as_by_itself(folder: Path, code: str) -> None:
    (folder / "pack").mkdir()
    (folder / "pack/__init__.py").write_text(code)
    (folder / "pack/train.py").write_text("print('trains')")
    alone = python(folder, "-m", "pack.train", "-o", "1")
    attached = python(folder, ATTACH, "-c", "on.yaml", "--", "-m", "pack.train", "-o", "1")
    assert (attached.returncode, attached.stdout) == (alone.returncode, alone.stdout)
    if alone.returncode:
        assert attached.stderr.splitlines()[-1] == alone.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    "program",
    one_in(
        2,
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
    ),
)
def test_it_ends_as_by_itself(folder: Path, program: str) -> None:
    (folder / "train.py").write_text(program)
    alone, attached = (
        python(folder, "train.py"),
        python(folder, ATTACH, "-c", "on.yaml", "train.py"),
    )
    assert attached.returncode == alone.returncode
    assert attached.stdout == alone.stdout
    unseen = "ppprof: no training step was detected: no optimizer stepped in this process, and number 1 would end a step; in a script that steps none, such as inference, use ppprof.attach() and its step()\n"
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
    one_in(
        3,
        [
            (["-c", "on.yaml"], "no script to run; expected -- SCRIPT ARGUMENTS after the options"),
            (
                ["-c", "on.yaml", "no.py"],
                "no.py: No such file or directory; expected a Python script",
            ),
            (
                ["-c", "on.yaml", "--", "-m", "no"],
                "-m no: expected a module, or a package with a __main__",
            ),
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
                "-o Global.seed=1: Global.seed: only the Profiler block is read; expected "
                "Profiler.KEY=VALUE, or Global.device_peak_flops or Global.device_peak_gbps\n"
                "-o Profilr.enable=True: Profilr.enable: only the Profiler block is read; expected "
                "Profiler.KEY=VALUE, or Global.device_peak_flops or Global.device_peak_gbps",
            ),
            (
                ["--profiler-options", "batch_range=[60, 50]; stat=GPU", "x.py"],
                "-o Profiler.profiler_options=batch_range=[60, 50]; stat=GPU: Profiler.profiler_options: "
                "batch_range: '[60, 50]': expected [START, STOP], to record batches START to STOP-1\n"
                "-o Profiler.profiler_options=batch_range=[60, 50]; stat=GPU: Profiler.profiler_options: "
                'stat: unknown option; did you mean "state"?',
            ),
        ],
    ),
)
def test_what_cannot_be_used_ends_it_before_the_script(
    folder: Path, arguments: Sequence[str], said: str
) -> None:
    (folder / "x.py").write_text("print('ran')")
    (folder / "other.yaml").write_text("Model: {hidden_size: 8}\n")
    done = python(folder, ATTACH, *arguments)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"{said}\n")


def test_without_enable_the_script_runs_by_itself(folder: Path) -> None:
    (folder / "off.yaml").write_text("scheduler: [2, 5]\n")
    (folder / "x.py").write_text(
        "import sys; print('ppprof.capture.recording.recorder' in sys.modules)"
    )
    done = python(folder, ATTACH, "-c", "off.yaml", "x.py")
    assert (done.returncode, done.stdout) == (0, "False\n")
    assert (
        done.stderr == "ppprof: Profiler.enable is False: running the script without the profiler\n"
    )
