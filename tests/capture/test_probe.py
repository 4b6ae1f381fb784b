"""The probe of a device, with Paddle on the CPU, and with packages that fail as Paddle does."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from ppprof.capture.children import Ended
from ppprof.capture.probe import KINDS, PERMISSION, SUBSCRIBER, Probe, interpret, probe

PADDLE = """
import os, sys, time
class _Tensor:
    def numpy(self): return None
def ones(shape): return _Tensor()
def matmul(a, b): return _Tensor()
def set_device(name): device.name = name; AT("device")
class device:
    name = "gpu:0"
    get_device = staticmethod(lambda: device.name)
    get_all_custom_device_type = staticmethod(lambda: ["npu"])
    synchronize = staticmethod(lambda: None)
FAULTS = {}
def AT(stage):
    if stage in FAULTS: FAULTS[stage]()
def die(text, code=255):
    def end():
        os.write(2, text.encode()); os._exit(code)
    return end
def fail(error):
    def end(): raise error
    return end
"""
CORE = """
import time
from types import SimpleNamespace as Node
import paddle
class ProfilerOptions: trace_switch = 0
def tree():
    now = time.time_ns()
    kernels = [Node(type="TracerEventType.Kernel", start_ns=now - 900, end_ns=now - 500)]
    launch = Node(start_ns=now - 1000, device_node=kernels if paddle.KERNELS else [])
    op = dict(type="TracerEventType.Operator", children_node=[], device_node=[])
    op = Node(runtime_node=[launch], **op)
    root = Node(type="x", children_node=[op], runtime_node=[], device_node=[])
    return {1: root}
class _Profiler:
    switches = []
    @staticmethod
    def create(options, types):
        _Profiler.switches.append((options.trace_switch, types))
        paddle.AT("create")
        return _Profiler() if not paddle.NO_PROFILER else None
    def prepare(self): paddle.AT("prepare")
    def start(self): paddle.AT("start")
    def stop(self):
        paddle.AT("stop")
        return Node(get_data=tree)
"""


@pytest.fixture
def simulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package named paddle, in which a test plants one fault."""
    package = tmp_path / "site" / "paddle"
    (package / "base").mkdir(parents=True)
    (package / "base" / "__init__.py").write_text("from . import core")
    (package / "base" / "core.py").write_text(CORE)
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    _plant(package)
    return package


def _plant(package: Path, fault: str = "", *, kernels: bool = True, profiler: bool = True) -> None:
    flags = f"KERNELS = {kernels}\nNO_PROFILER = {not profiler}\n"
    (package / "__init__.py").write_text(PADDLE + flags + textwrap.dedent(fault))


def test_a_window_that_holds_its_kernel(simulated: Path) -> None:
    result = probe(timeout=20)
    assert (result.kind, result.device, result.ok) == ("works", "gpu:0", True)
    assert (result.num_operators, result.num_launches, result.num_kernels) == (1, 1, 1)
    assert result.launch_ns is not None
    assert result.kernel_start_ns is not None
    assert result.kernel_end_ns is not None
    assert result.launch_ns < result.kernel_start_ns < result.kernel_end_ns
    assert result.reason == "a window on gpu:0 holds its kernel"
    assert result.action == ""


def test_the_device_and_the_targets_are_the_callers(simulated: Path) -> None:
    fault = "FAULTS['stop'] = lambda: fail(RuntimeError(str(base.core._Profiler.switches)))()"
    _plant(simulated, f"import paddle.base as base\n{fault}")
    result = probe(("cpu", "gpu", "custom_device"), 20, "gpu:2")
    assert result.device == "gpu:2"
    assert "[(11, ['npu'])]" in result.reason
    assert "[(9, ['npu'])]" in probe(None, 20, "npu:0").reason  # the device's own kind


PERMISSION_TEXT = (
    "E0101 00:00:00.000000  1 cuda_tracer.cc:78] Function dynload::cuptiActivityEnable("
    "CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) failed with error CUPTI_ERROR_INSUFFICIENT_PRIVILEGES\\n"
)


@pytest.mark.parametrize(
    ("stage", "text", "kind", "reason", "action"),
    [
        ("prepare", PERMISSION_TEXT, "refused", "lets only administrators profile", PERMISSION),
        (
            "prepare",
            "failed with error CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED",
            "refused",
            "another profiler uses the GPU",
            SUBSCRIBER,
        ),
        (
            "create",
            "The third-party dynamic library (libcupti.so) that Paddle depends on is not configured",
            "refused",
            "does not find libcupti.so",
            "LD_LIBRARY_PATH",
        ),
        (
            "device",
            "CUDA error(100), no CUDA-capable device is detected.",
            "no device",
            "there is no usable GPU",
            "nvidia-smi works here",
        ),
        (
            "device",
            "CUDA error(35), CUDA driver version is insufficient for CUDA runtime version.",
            "no device",
            "older than the CUDA that Paddle was built for",
            "update the driver",
        ),
        ("start", "a text that is not known: error 7", "refused", "error 7", "[cpu]"),
    ],
)
def test_the_profiler_or_the_device_ends_the_process(
    simulated: Path, stage: str, text: str, kind: str, reason: str, action: str
) -> None:
    _plant(simulated, f"FAULTS[{stage!r}] = die('''{text}''')")
    result = probe(timeout=20, device="gpu:0")
    assert (result.kind, result.ok, result.exit_code) == (kind, False, 255)
    assert reason in result.reason
    assert "code 255" in result.reason
    assert action in result.action
    assert text.replace("\\n", "") in result.messages


def test_a_plugin_without_hooks_raises(simulated: Path) -> None:
    error = (
        "C++ Traceback (most recent call last):\\n----\\nError Message Summary:\\n----\\n"
        "UnimplementedError: no hooks here\\n  [Hint: not this] (at /paddle/x.cc:1)"
    )
    _plant(simulated, f"FAULTS['create'] = fail(RuntimeError('{error}'))")
    result = probe(timeout=20, device="npu:0")
    assert (result.kind, result.device) == ("no hooks", "npu:0")
    assert result.reason == (
        "the device's plugin has no profiler: UnimplementedError: no hooks here"
    )
    assert "Profiler.targets: [cpu]" in result.action


def test_paddle_returns_no_profiler(simulated: Path) -> None:
    _plant(simulated, profiler=False)
    result = probe(timeout=20)
    assert result.kind == "no hooks"
    assert "Paddle returned no profiler" in result.reason


def test_a_window_without_kernels_and_a_profiler_that_writes_files(simulated: Path) -> None:
    _plant(simulated, "FAULTS['start'] = lambda: os.mkdir('ascend_profiling')", kernels=False)
    result = probe(timeout=20, device="npu:0")
    assert (result.kind, result.files) == ("no events", ("ascend_profiling",))
    assert result.reason == (
        "a window on npu:0 holds no kernel; its profiler wrote files of its own: ascend_profiling"
    )
    assert not Path("ascend_profiling").exists()


def test_a_device_that_hangs(simulated: Path) -> None:
    _plant(simulated, "FAULTS['device'] = lambda: time.sleep(60)")
    result = probe(timeout=3, device="gpu:0")
    assert (result.kind, result.exit_code) == ("late", None)
    assert result.reason == "no answer within 3 s while starting the device"


def test_a_crash_is_reported_with_its_signal(simulated: Path) -> None:
    _plant(simulated, "FAULTS['stop'] = lambda: os.kill(os.getpid(), 11)")
    result = probe(timeout=20)
    assert (result.kind, result.exit_code) == ("refused", -11)
    assert result.reason == "the child ended with signal 11 while closing the window"


def test_what_paddle_prints_is_not_taken_for_the_result(simulated: Path) -> None:
    _plant(simulated, "print('{\"result\": {}}', flush=True)")
    assert probe(timeout=20).kind == "works"


def test_a_broken_installation(simulated: Path) -> None:
    _plant(simulated, "raise ImportError('libcudart.so.12: cannot open shared object file')")
    result = probe(timeout=20)
    assert (result.kind, result.device) == ("no device", "")
    assert "a library of the device's driver or runtime is missing" in result.reason


def test_a_folder_that_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/no/such/folder")
    result = probe(timeout=5)
    assert (result.kind, result.action) == ("failed", "make TMPDIR writable")


def test_a_child_without_an_answer() -> None:
    result = interpret(Ended(0, "", ""), 5)  # a parent that ignores SIGCHLD sees every code as 0
    assert result.kind == "failed"
    assert interpret(Ended(-14, '{"stage": "stop"}\nnoise', ""), 5).kind == "late"
    assert isinstance(interpret(Ended(3, '{"result": 5}\n[]', "x"), 5), Probe)


def test_every_kind_has_its_meaning() -> None:
    assert set(KINDS) >= {"works", "refused", "no hooks", "no events", "no device", "late"}


@pytest.mark.paddle
def test_a_window_of_paddle_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("paddle")
    monkeypatch.setenv("PADDLE_TRAINER_ID", "3")
    monkeypatch.setenv("PADDLE_TRAINERS_NUM", "8")
    result = probe(("cpu",), device="cpu")
    assert (result.kind, result.device, result.exit_code) == ("works", "cpu", 0)
    assert result.num_operators == 1
    assert result.num_kernels == 0
    assert not list(Path().glob("ppprof-*"))
