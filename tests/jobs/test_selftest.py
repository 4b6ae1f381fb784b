"""``ppprof doctor --selftest`` on the test device: its lines are those of ``selftest.txt``."""

from __future__ import annotations

import json
import re
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import ppprof
from tests.jobs.launching import ROOT, command, environment
from tools.doc_trainings import masked

pytestmark = [pytest.mark.paddle, pytest.mark.all]

Switches = Callable[..., dict[str, str]]


def selftest(
    folder: Path, test_device: Switches, code: int = 0, **switches: object
) -> tuple[list[str], Path]:
    """Run the self-test; return its own lines, and the folder of what the archive holds."""
    done = subprocess.run(
        command("-m", "ppprof", "doctor", "--selftest"),
        cwd=folder,
        env=environment(folder, **test_device(**switches)),
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    (archive,) = folder.glob("ppprof-selftest-*.zip")
    assert f"attach {archive.name} to a bug report" in done.stderr
    content = folder / "content"
    zipfile.ZipFile(archive).extractall(content)
    assert (content / "checks.txt").read_text() == done.stdout.rstrip("\n")
    checks = json.loads((content / "checks.json").read_text())
    own = [check["name"] for check in checks].index("versions") + 1
    first = next(
        i
        for i, line in enumerate(done.stdout.splitlines())
        if line[9:].startswith(checks[own]["name"])
    )
    return done.stdout.splitlines()[first:-2], content


@pytest.mark.jobs
def test_the_transcript(tmp_path: Path, test_device: Switches) -> None:
    lines, content = selftest(tmp_path, test_device, KERNEL_MS=20, COMM_MS=100, WAITS=1)
    expected = Path(__file__).with_name("selftest.txt").read_text(encoding="utf-8").splitlines()
    assert [masked(line) for line in expected] == [masked(line) for line in lines]
    for name in ("devices.md", "devices.zh-CN.md"):
        page = (ROOT / "docs" / name).read_text(encoding="utf-8")
        (shown,) = re.findall(r"^```text\n(ok +kernels .*?)^```$", page, re.MULTILINE | re.DOTALL)
        assert set(shown.splitlines()) <= {*expected, "..."}
    # The captures in the archive can be read anywhere.
    kernels = ppprof.open(content / "kernels/log").events().filter(category="Kernel").height
    assert f"kernels with their launch: {kernels} of {kernels}" in lines[0]
    assert "step 7" in (content / "kernels/output.0").read_text()


def test_a_device_that_loses_records_and_whose_events_lie_differs(
    tmp_path: Path, test_device: Switches
) -> None:
    lines, _ = selftest(tmp_path, test_device, code=1, KERNEL_MS=20, DROPS=50, LIES=1, COUNT=1)
    differ = [line for line in lines if line.startswith("PROBLEM")]
    assert any(
        re.search(r"AdamW kernels of 4 parameters: \d+; expected: 12", line) for line in differ
    )
    assert any("step outside of windows" in line for line in differ)
    assert (
        "communication    not run: needs 2 devices of the kind testdevice; there is 1"
        in "\n".join(lines)
    )


def test_bodies_about_kernels_are_not_run_on_a_device_without_events(
    tmp_path: Path, test_device: Switches
) -> None:
    lines, _ = selftest(tmp_path, test_device, EVENTS=0, COUNT=1)
    run = {line[9:24].strip() for line in lines if line.startswith("ok")}
    assert run == {"memory"}
    assert "kernels          not run: a window on testdevice holds no kernel" in lines[0]


def test_a_refusal_is_what_is_tested_on_a_device_that_refuses(
    tmp_path: Path, test_device: Switches
) -> None:
    lines, _ = selftest(tmp_path, test_device, code=1, REFUSES=1)
    assert [line.split("  ")[0] for line in lines] == ["ok"] * 4  # doctor's own line is the problem
    assert "a message says why the device is not recorded: True" in lines[0]
