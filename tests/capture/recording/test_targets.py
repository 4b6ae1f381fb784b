"""Which targets are recorded, by what a probe of the device's profiler says."""

from __future__ import annotations

import ctypes
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

paddle = pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
pytestmark = pytest.mark.paddle

from ppprof.capture import probe as probing  # noqa: E402
from ppprof.capture.probe import Probe  # noqa: E402
from ppprof.capture.recording import targets  # noqa: E402
from ppprof.capture.recording.targets import Targets  # noqa: E402
from ppprof.rundir import device_probes  # noqa: E402
from tests.fixtures.c_libraries import build_library  # noqa: E402

NO_XPU = {"is_xpti_supported": lambda: False}


@pytest.fixture(autouse=True)
def npu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A training on an NPU, a custom device."""
    monkeypatch.setattr(paddle.device, "get_device", lambda: "npu:1")
    monkeypatch.setattr(paddle.device, "get_all_custom_device_type", lambda: ["npu"])
    monkeypatch.setattr(targets, "_known", {})
    monkeypatch.setattr(targets, "_probed", set())


class Probed:
    """A probe with a result, which notes how it was called."""

    def __init__(self, kind: str, *files: str) -> None:
        self.calls: list[tuple[Any, str]] = []
        self._found = Probe(kind, "the reason", "the action", files=files)

    def __call__(self, names: Any, device: str) -> Probe:
        self.calls.append((names, device))
        return self._found


@pytest.mark.parametrize(
    ("wanted", "kind", "files", "recorded"),
    [
        ("auto", probing.WORKS, (), ["cpu", "custom_device"]),
        ("auto", probing.WORKS, ("ascend_profiling",), ["cpu"]),
        (("cpu", "custom_device"), probing.WORKS, ("out",), ["cpu", "custom_device"]),
        ("auto", probing.NO_EVENTS, (), ["cpu"]),
        (("custom_device",), probing.NO_EVENTS, (), ["custom_device"]),
        (("custom_device",), probing.REFUSED, (), ["cpu"]),
        (("custom_device",), probing.NO_HOOKS, (), ["cpu"]),
        ("auto", probing.LATE, (), ["cpu"]),
        ("auto", probing.NO_DEVICE, (), ["cpu"]),
        (("cpu",), probing.REFUSED, (), ["cpu"]),
    ],
)
def test_what_is_recorded(
    tmp_path: Path,
    messages: list[str],
    wanted: Any,
    kind: str,
    files: tuple[str, ...],
    recorded: list[str],
) -> None:
    probe = Probed(kind, *files)
    decided = Targets(wanted, tmp_path, probe)
    assert decided.decide() == recorded
    assert decided.decide() == recorded
    assert decided.on_device is (recorded != ["cpu"])
    expected = [] if wanted == ("cpu",) else [(list(_names(wanted)), "npu:1")]
    assert probe.calls == expected
    if recorded == ["cpu"] and wanted != ("cpu",):
        assert messages == [
            "npu:1 is not recorded: the reason; windows hold the host's events only, and the training "
            "goes on; what to do: the action"
        ]
    else:
        assert messages == []


def _names(wanted: Any) -> Any:
    return ("cpu", "custom_device") if wanted == "auto" else wanted


def test_one_rank_of_a_node_probes_for_all_and_warns(tmp_path: Path, messages: list[str]) -> None:
    probe = Probed(probing.REFUSED)
    ranks = [Targets("auto", tmp_path, probe) for _ in range(3)]
    assert [rank.decide() for rank in ranks] == [["cpu"]] * 3
    assert len(probe.calls) == 1
    assert len(messages) == 1


def test_a_probe_that_does_not_end_leaves_the_device_out(
    tmp_path: Path, messages: list[str]
) -> None:
    is_over = threading.Event()

    def probe(names: Any, device: str) -> Probe:
        is_over.wait(60)
        return Probe(probing.WORKS, "")

    decided = Targets("auto", tmp_path, probe)
    assert decided.decide(patience_s=0.1) == ["cpu"]
    is_over.set()
    assert "the probe of its profiler has not ended" in messages[0]


def test_a_rank_whose_prober_died_does_not_wait_for_ever(
    tmp_path: Path, messages: list[str]
) -> None:
    assert device_probes.claim(tmp_path)
    assert Targets("auto", tmp_path, Probed(probing.WORKS)).decide(patience_s=0.1) == ["cpu"]


@pytest.mark.parametrize("content", ["", "[]", '{"kind": 3}', '{"kind": "works"}', "{" * 70000])
def test_a_damaged_result_is_none(tmp_path: Path, content: str) -> None:
    assert device_probes.claim(tmp_path)
    (asked,) = (tmp_path / "devices").iterdir()
    asked.with_suffix(".json").write_text(content)
    assert device_probes.read(tmp_path) is None


def test_a_window_that_cannot_wait_records_the_host_until_the_probe_has_ended() -> None:
    may_end, has_ended = threading.Event(), threading.Event()

    def probe(names: Any, device: str) -> Probe:
        may_end.wait(60)
        return Probe(probing.WORKS, "")

    assert Targets("auto", None, probe).decide() == ["cpu"]
    may_end.set()
    for _ in range(1000):
        if targets._known:
            break
        has_ended.wait(0.01)
    assert Targets("auto", None, Probed(probing.REFUSED)).decide() == ["cpu", "custom_device"]


def test_a_cpu_is_recorded_without_a_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paddle.device, "get_device", lambda: "cpu")
    probe = Probed(probing.REFUSED)
    decided = Targets("auto", tmp_path, probe)
    assert (decided.decide(), decided.on_device, probe.calls) == (["cpu"], False, [])
    assert list(tmp_path.iterdir()) == []


def test_a_target_that_this_build_lacks_is_left_out(tmp_path: Path, messages: list[str]) -> None:
    decided = Targets(("cpu", "gpu"), tmp_path, Probed(probing.REFUSED))
    assert decided.decide() == ["cpu"]
    assert messages == ["Profiler.targets: gpu cannot be traced here and is left out"]


CUPTI = """
int is_on = 0;
int cuptiActivityEnable(int kind) { is_on = RESULT ? 0 : kind; return RESULT; }
int cuptiActivityDisable(int kind) { if (is_on == kind) is_on = 0; return 0; }
"""


@pytest.mark.parametrize(
    ("result", "recorded"), [(0, ["cpu", "gpu"]), (35, ["cpu"]), (None, ["cpu"])]
)
def test_where_a_child_gets_no_device_cupti_is_asked_in_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, result: int | None, recorded: list[str]
) -> None:
    """The training has all memory of a GPU. CUPTI accepts, refuses (35: privileges), or is absent."""
    monkeypatch.setattr(paddle.device, "get_device", lambda: "gpu:0")
    monkeypatch.setattr(paddle.device.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(
        targets.core, "_Profiler", SimpleNamespace(is_cupti_supported=lambda: True, **NO_XPU)
    )
    library = tmp_path / "libcupti.so"
    if result is not None:
        build_library(CUPTI.replace("RESULT", str(result)), library)
    load = ctypes.CDLL
    monkeypatch.setattr(targets.ctypes, "CDLL", lambda name: load(str(library)))
    for kind in (probing.NO_DEVICE, probing.LATE):
        run = tmp_path / kind
        run.mkdir()
        assert Targets("auto", run, Probed(kind)).decide() == recorded
    if result is not None:
        assert ctypes.c_int.in_dll(load(str(library)), "is_on").value == 0
