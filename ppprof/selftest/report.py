"""Run all bodies of the self-test on this machine's device, and keep their files in an archive."""

from __future__ import annotations

import json
import logging
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from ppprof.capture.doctor.checks import OK, PROBLEM, WARNING, Check
from ppprof.capture.output import reason as reason_of
from ppprof.capture.probe import REFUSED as PROBE_REFUSED
from ppprof.capture.probe import WORKS
from ppprof.selftest.bodies import BODIES, REFUSED, Body
from ppprof.selftest.trained import Machine, Trained


def selftest(window: Check | None, folder: Path) -> Iterator[Check]:
    """Run the bodies that suit the device, and return a check for each claim.

    Args:
        window: doctor's check of the window, which names the device; None without Paddle.
        folder: an empty folder, for the files of the trainings.
    """
    probe = {} if window is None else window.values
    device = str(probe.get("device") or "").partition(":")[0]
    if device in ("", "cpu"):
        reason = "not run: Paddle has no device here but the CPU"
        yield Check("self-test", WARNING, reason, "install Paddle's build for the device")
        return
    num_devices, kind = 1, probe.get("kind")
    bodies = {"refusal": REFUSED} if kind == PROBE_REFUSED else BODIES
    for name, body in bodies.items():
        if body.needs_kernels and kind != WORKS:
            yield Check(name, WARNING, f"not run: a window on {device} holds no kernel")
        elif body.num_devices > num_devices:
            why = f"needs {body.num_devices} devices of the kind {device}; there is {num_devices}"
            yield Check(name, WARNING, f"not run: {why}")
        else:
            # A time that differs may be due to other programs: one more training decides.
            for own in (folder / body.training, folder / f"{body.training}.again"):
                own.mkdir()
                trained = body.train(Machine(device), own)
                for rank, printed in trained.printed.items():
                    (own / f"output.{rank}").write_text(printed)
                num_devices = max(num_devices, _num_devices(trained))
                with _only_errors():
                    checks = list(_checks(name, body, trained))
                differ = [check for check in checks if check.status == PROBLEM]
                if not differ or not all(check.values.get("is_timed") for check in differ):
                    break
            yield from checks


@contextmanager
def _only_errors() -> Iterator[None]:
    """Return a context manager in which ppprof logs no notes on the runs of the self-test."""
    logger = logging.getLogger("ppprof")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _num_devices(trained: Trained) -> int:
    """Return how many devices the training saw; 1 if it failed before."""
    try:
        manifest = json.loads((trained.folder / "log/manifest.json").read_text())
        return int(manifest["machine"]["count"])
    except (OSError, ValueError, KeyError, TypeError):
        return 1


def _checks(name: str, body: Body, trained: Trained) -> Iterator[Check]:
    try:
        for claim in body.check(trained):
            values = asdict(claim)
            if claim.holds:
                yield Check(name, OK, claim.measured, values=values)
            else:
                differs = f"{claim.measured}; expected: {claim.expected}"
                yield Check(name, PROBLEM, differs, values=values)
    except Exception as error:  # a run that cannot be read is what the self-test looks for
        yield Check(name, PROBLEM, f"the run cannot be read: {reason_of(error)}")


def archive(file: Path, folder: Path, checks: Sequence[Check], text: str) -> None:
    """Write the checks, as JSON and as text, and the files of the trainings into a ZIP archive.

    Args:
        file: the archive; it does not exist.
        folder: that of the trainings.
        checks: all checks of doctor and of the self-test.
        text: the checks as they are printed.

    Raises:
        OSError: the archive cannot be written.
    """
    with zipfile.ZipFile(file, "x", zipfile.ZIP_DEFLATED) as target:
        target.writestr("checks.json", json.dumps(list(map(asdict, checks)), default=str, indent=1))
        target.writestr("checks.txt", text)
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not path.is_symlink():
                target.write(path, path.relative_to(folder))
