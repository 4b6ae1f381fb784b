"""The probe of a device, with Paddle on the CPU, and with packages that fail as Paddle does."""

from __future__ import annotations

from pathlib import Path

import pytest

from ppprof.capture.children import Ended
from ppprof.capture.probe import KINDS, PERMISSION, SUBSCRIBER, Probe, interpret, probe
from tests.capture.simulated_paddle import make, plant


@pytest.fixture
def simulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package named paddle, in which a test plants one fault."""
    package = make(tmp_path / "site")
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    return package


def test_a_window_that_holds_its_kernel(simulated: Path) -> None:
    result = probe(timeout=20)
    assert (result.kind, result.device) == ("works", "gpu:0")
    assert (result.num_operators, result.num_launches, result.num_kernels) == (1, 1, 1)
    assert result.ahead_ns is not None
    assert result.ahead_ns[1] == 100
    assert result.reason == "a window on gpu:0 holds its kernel"
    assert result.action == ""


def test_the_device_and_the_targets_are_the_callers(simulated: Path) -> None:
    fault = "FAULTS['stop'] = lambda: fail(RuntimeError(str(base.core._Profiler.switches)))()"
    plant(simulated, f"import paddle.base as base\n{fault}")
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
        ("start", "a text that is not known: error 7", "refused", "error 7", "report"),
    ],
)
def test_the_profiler_or_the_device_ends_the_process(
    simulated: Path, stage: str, text: str, kind: str, reason: str, action: str
) -> None:
    plant(simulated, f"FAULTS[{stage!r}] = die('''{text}''')")
    result = probe(timeout=20, device="gpu:0")
    assert (result.kind, result.exit_code) == (kind, 255)
    assert reason in result.reason
    assert "code 255" in result.reason
    assert action in result.action
    assert text.replace("\\n", "") in result.messages


def test_a_plugin_without_hooks_raises(simulated: Path) -> None:
    error = (
        "C++ Traceback (most recent call last):\\n----\\nError Message Summary:\\n----\\n"
        "UnimplementedError: no hooks here\\n  [Hint: not this] (at /paddle/x.cc:1)"
    )
    plant(simulated, f"FAULTS['create'] = fail(RuntimeError('{error}'))")
    result = probe(timeout=20, device="npu:0")
    assert (result.kind, result.device) == ("no hooks", "npu:0")
    assert result.reason == (
        "the device's plugin has no profiler: UnimplementedError: no hooks here"
    )
    assert result.action == "use the profiler of the device's maker"


def test_paddle_returns_no_profiler(simulated: Path) -> None:
    plant(simulated, profiler=False)
    result = probe(timeout=20)
    assert result.kind == "no hooks"
    assert "Paddle returned no profiler" in result.reason


def test_a_window_without_kernels_and_a_profiler_that_writes_files(simulated: Path) -> None:
    plant(simulated, "FAULTS['start'] = lambda: os.mkdir('ascend_profiling')", kernels=False)
    result = probe(timeout=20, device="npu:0")
    assert (result.kind, result.files) == ("no events", ("ascend_profiling",))
    assert result.reason == (
        "a window on npu:0 holds no kernel of 1 launches: lost, or the device's clock is behind the host's; "
        "its profiler writes files of its own: ascend_profiling"
    )
    assert not Path("ascend_profiling").exists()


def test_a_device_that_hangs(simulated: Path) -> None:
    plant(simulated, "FAULTS['device'] = lambda: time.sleep(60)")
    result = probe(timeout=3, device="gpu:0")
    assert (result.kind, result.exit_code) == ("late", None)
    assert result.reason == "no answer within 3 s while starting the device"


def test_a_crash_is_reported_with_its_signal(simulated: Path) -> None:
    plant(simulated, "FAULTS['stop'] = lambda: os.kill(os.getpid(), 11)")
    result = probe(timeout=20)
    assert (result.kind, result.exit_code) == ("refused", -11)
    assert result.reason == "the child ended with signal 11 while closing the window"


def test_what_paddle_prints_is_not_taken_for_the_result(simulated: Path) -> None:
    plant(simulated, "print('{\"result\": {}}', flush=True)")
    assert probe(timeout=20).kind == "works"


def test_a_broken_installation(simulated: Path) -> None:
    plant(simulated, "raise ImportError('libcudart.so.12: cannot open shared object file')")
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
