"""``ppprof.selftest`` decides about a claim: without a training."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ppprof.capture.doctor.checks import OK, PROBLEM, Check
from ppprof.selftest import report
from ppprof.selftest.bodies import Body, Claim
from ppprof.selftest.trained import Machine, Trained


class _Untrained(Body):
    """A body whose trainings only make a folder."""

    def train(self, machine: Machine, folder: Path) -> Trained:
        return Trained(folder, [0], {0: folder.name})


def _held(count_holds: bool, **times: bool) -> Body:
    """Return a body with a count, and with a time that holds in the given trainings."""

    def claims(trained: Trained) -> Iterator[Claim]:
        name = trained.folder.name.replace(".", "_")
        yield Claim(count_holds, f"kernels of {name}", "3")
        yield Claim(times[name], f"step of {name}", "101 ms", is_timed=True)

    return _Untrained(claims, "body")


@pytest.mark.parametrize(
    ("body", "statuses", "trainings"),
    [
        (_held(True, body=True), [OK, OK], ["body"]),
        (_held(True, body=False, body_again=True), [OK, OK], ["body", "body.again"]),
        (_held(True, body=False, body_again=False), [OK, PROBLEM], ["body", "body.again"]),
        # A lost record is a defect even if the next training loses none.
        (_held(False, body=True), [PROBLEM, OK], ["body"]),
        (_held(False, body=False), [PROBLEM, PROBLEM], ["body"]),
    ],
)
def test_only_a_time_that_differs_is_measured_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    body: Body,
    statuses: list[str],
    trainings: list[str],
) -> None:
    monkeypatch.setattr(report, "BODIES", {"asynchronous": body})
    window = Check("window", OK, "", values={"device": "gpu:0", "kind": report.WORKS})
    checks = list(report.selftest(window, tmp_path))
    assert [check.status for check in checks] == statuses
    last = trainings[-1].replace(".", "_")
    assert [check.reason.partition(";")[0] for check in checks] == [
        f"kernels of {last}",
        f"step of {last}",
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == trainings
    assert (tmp_path / trainings[-1] / "output.0").read_text() == trainings[-1]


def test_a_device_that_was_not_recorded_is_said_before_any_claim(tmp_path: Path) -> None:
    warning = (
        "npu:0 is not recorded: why; windows hold the host's events only, and the training goes on"
    )

    def claims(trained: Trained) -> Iterator[Claim]:
        yield Claim(True, "memory", "")

    trained = Trained(tmp_path, [0], {0: "step 1", 1: f"first\nppprof: rank 1: {warning}\nlast"})
    (claim,) = Body(claims, "body").check(trained)
    assert not claim.holds
    assert claim.measured == f"ppprof: rank 1: {warning}"
    assert [claim.holds for claim in Body(claims, "body", needs_kernels=False).check(trained)] == [
        True
    ]
