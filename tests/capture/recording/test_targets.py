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

from ppprof.capture import child_programs  # noqa: E402
from ppprof.capture import probe as probing  # noqa: E402
from ppprof.capture.child_programs import load_cupti  # noqa: E402
from ppprof.capture.probe import Probe  # noqa: E402
from ppprof.capture.profiled_calls import _start_recorder  # noqa: E402
from ppprof.capture.recording import cupti, recorder, targets  # noqa: E402
from ppprof.capture.recording.targets import Targets  # noqa: E402
from ppprof.capture.steps import device_timer  # noqa: E402
from ppprof.rundir import device_probes  # noqa: E402
from tests.fixtures.c_libraries import build_library  # noqa: E402

NO_XPU = {"is_xpti_supported": lambda: False}


@pytest.fixture(autouse=True)
def npu(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A training on an NPU, a custom device, in a process that has no CUPTI, whatever other tests have loaded."""
    maps = tmp_path_factory.mktemp("maps") / "maps"
    maps.touch()
    monkeypatch.setattr(cupti, "_MAPS", maps)
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
int is_on[20], num_asked, code = RESULT;
int cuptiActivityEnable(int kind) { num_asked++; return code ? code : (is_on[kind] = 1, 0); }
int cuptiActivityDisable(int kind) { is_on[kind] = 0; return 0; }
int cuptiGetResultString(int code, const char **text) {
    *text = code == 35 ? "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES" : "CUPTI_ERROR_UNKNOWN"; return 0; }
"""


def no_probe(names: Any, device: str) -> Probe:
    raise AssertionError("a child process takes memory of the GPU")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A training on a GPU; the file that lists the libraries of its process."""
    monkeypatch.setattr(paddle.device, "get_device", lambda: "gpu:0")
    monkeypatch.setattr(paddle.device.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(
        targets.core, "_Profiler", SimpleNamespace(is_cupti_supported=lambda: True, **NO_XPU)
    )
    maps = tmp_path / "maps"
    maps.write_text("7f0000-7f1000 r-xp 0 08:01 12  /usr/lib/libc.so.6\n")
    monkeypatch.setattr(cupti, "_MAPS", maps)
    monkeypatch.setattr(cupti, "load_cupti", lambda *_: ("", None))
    return maps


def load(maps: Path, result: int) -> ctypes.CDLL:
    library = maps.parent / f"extras with a space/libcupti.so.12.{result}"
    build_library(CUPTI.replace("RESULT", str(result)), library)
    maps.write_text(f"{maps.read_text()}7f2000-7f3000 r-xp 0 08:01 34  {library}\n")
    return ctypes.CDLL(str(library))


def test_cupti_is_asked_in_the_process_of_the_training_ahead_of_each_window(
    gpu: Path, tmp_path: Path, messages: list[str]
) -> None:
    """No child takes memory of the GPU. Another profiler comes between the second window and the third."""
    library = load(gpu, 0)
    ranks = [Targets("auto", tmp_path, no_probe) for _ in range(2)]
    assert [rank.seconds_left for rank in ranks] == [0, 0]
    for _ in range(2):
        assert [rank.decide() for rank in ranks] == [["cpu", "gpu"]] * 2
    assert ctypes.c_int.in_dll(library, "num_asked").value == 20
    assert not any((ctypes.c_int * 20).in_dll(library, "is_on"))
    assert messages == []
    ctypes.c_int.in_dll(library, "code").value = 35
    assert [rank.decide() for rank in ranks] == [["cpu"]] * 2
    assert [rank.on_device for rank in ranks] == [False, False]
    assert len(messages) == 2
    assert messages[0].startswith(
        "gpu:0 is not recorded: the NVIDIA driver lets only administrators profile "
        "(CUPTI_ERROR_INSUFFICIENT_PRIVILEGES); windows hold the host's events only"
    )
    assert [rank.decide() for rank in ranks] == [["cpu"]] * 2
    assert len(messages) == 2
    ctypes.c_int.in_dll(library, "code").value = 0  # as if the other profiler has ended
    assert ranks[0].decide(continues=True) == ["cpu"]  # a window has one kind of events
    assert [rank.decide() for rank in ranks] == [["cpu", "gpu"]] * 2
    assert messages[2:] == ["gpu:0 is recorded again"] * 2


def test_each_refusal_is_said_on_the_node_whichever_rank_meets_it(
    gpu: Path, tmp_path: Path, messages: list[str]
) -> None:
    """As of another profiler on the GPU of the second rank alone."""
    library = load(gpu, 0)
    ranks = [Targets("auto", tmp_path, no_probe) for _ in range(2)]
    assert ranks[0].decide() == ["cpu", "gpu"]
    ctypes.c_int.in_dll(library, "code").value = 35
    assert ranks[1].decide() == ["cpu"]
    (message,) = messages
    assert "only administrators profile" in message


def test_the_cupti_that_paddle_will_load_is_asked(
    gpu: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paddle's wheels look first in the package that they bring, not on the loader's path."""
    monkeypatch.setattr(cupti, "load_cupti", load_cupti)
    build_library(CUPTI.replace("RESULT", "0"), tmp_path / "toolkit/libcupti.so")
    build_library(CUPTI.replace("RESULT", "35"), tmp_path / "lib/libcupti.so.12")
    monkeypatch.setattr(child_programs, "_CUPTI_NAMES", ("libcupti.so.12",))
    monkeypatch.setattr(cupti, "cupti_folders", lambda: (str(tmp_path / "toolkit"),))
    assert Targets("auto", tmp_path, no_probe).decide() == ["cpu", "gpu"]
    monkeypatch.setattr(cupti, "cupti_folder_of_paddle", lambda: str(tmp_path / "lib"))
    assert Targets("auto", tmp_path, no_probe).decide() == ["cpu"]


@pytest.mark.parametrize(
    ("result", "why"), [(35, "lets only administrators profile"), (999, "CUPTI failed")]
)
def test_ranks_that_cupti_refuses_from_the_start_say_so_once(
    gpu: Path, tmp_path: Path, messages: list[str], result: int, why: str
) -> None:
    load(gpu, result)
    ranks = [Targets("auto", tmp_path, no_probe) for _ in range(2)]
    assert [rank.decide() for rank in ranks] == [["cpu"]] * 2
    (message,) = messages
    assert why in message


def test_a_gpu_without_cupti_is_not_recorded(
    gpu: Path, tmp_path: Path, messages: list[str]
) -> None:
    assert Targets("auto", tmp_path, no_probe).decide() == ["cpu"]
    assert "Paddle does not find libcupti.so" in messages[0]


def test_the_cupti_that_the_process_has_loaded_is_asked_not_the_first_on_the_path(
    gpu: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(gpu, 0)
    other = tmp_path / "path/libcupti.so"
    build_library(CUPTI.replace("RESULT", "35"), other)
    monkeypatch.setattr(cupti, "load_cupti", lambda *_: ("", ctypes.CDLL(str(other))))
    assert Targets("auto", tmp_path, no_probe).decide() == ["cpu", "gpu"]
    gpu.write_text("")
    assert Targets("auto", tmp_path, no_probe).decide() == ["cpu"]


DRIVER = """
int used = -1;
int cuDeviceGetCount(int *count) { *count = 2; return 0; }
int cuDeviceGet(int *device, int number) { *device = number + 10; return 0; }
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    *active = device == used; return 0; }
"""


def test_a_remote_call_is_recorded_inside_only_if_its_process_has_started_cuda(
    gpu: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paddle's profiler would make a context on each GPU, 0.5 GB, for a worker that computes on the CPU."""
    path = tmp_path / "libcuda.so.1"
    build_library(DRIVER, path)
    monkeypatch.setattr(device_timer, "_DRIVER", str(path))
    started: list[dict[str, Any]] = []

    def fake(config: Any, **options: Any) -> Any:
        started.append(options)
        return SimpleNamespace(prepare=lambda: True, start=lambda: None)

    monkeypatch.setattr(recorder, "Recorder", fake)
    monkeypatch.setattr(paddle.device, "get_device", lambda: "cpu")
    monkeypatch.setattr(targets.core, "is_compiled_with_cuda", lambda: True)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="would start CUDA"):
            _start_recorder({})
        driver = ctypes.CDLL(str(path))
    assert started == []
    ctypes.c_int.in_dll(driver, "used").value = 11
    _start_recorder({})
    ctypes.c_int.in_dll(driver, "used").value = -1
    monkeypatch.setattr(targets.core, "is_compiled_with_rocm", lambda: True)  # no such driver
    _start_recorder({})
    assert len(started) == 2


def test_a_plugin_that_uses_a_cupti_is_asked_after_its_probe(
    gpu: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paddle.device, "get_device", lambda: "npu:1")
    decided = Targets("auto", tmp_path, Probed(probing.WORKS))
    assert decided.decide() == ["cpu", "custom_device"]
    load(gpu, 35)
    assert decided.decide() == ["cpu"]
