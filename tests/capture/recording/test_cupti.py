"""CUPTI is detached after a window on request, as NVIDIA's manual asks: by a stand-in that counts the calls."""

from __future__ import annotations

import ctypes
import threading
from pathlib import Path

import pytest

from ppprof.capture.recording import cupti
from tests.fixtures.c_libraries import build_library

STAND_IN = """
#include <stdint.h>
typedef void (*Callback)(void *, int, uint32_t, const void *);
static Callback callback;
static void *user;
static int is_enabled, is_inside;
int subscribed, unsubscribed, finalized, finalized_inside_an_exit, other_exits, refuses;

int cuptiSubscribe(void **subscriber, Callback function, void *data) {
    if (refuses) return 39;
    subscribed++; callback = function; user = data; *subscriber = &callback;
    return 0;
}
int cuptiUnsubscribe(void *subscriber) { unsubscribed += subscriber == &callback; callback = 0; is_enabled = 0; return 0; }
int cuptiEnableCallback(uint32_t enable, void *subscriber, int domain, uint32_t call) {
    is_enabled = enable && subscriber == &callback && domain == 1 && call == 17;
    return 0;
}
int cuptiFinalize(void) { finalized++; finalized_inside_an_exit += is_inside; return 0; }

static void returns_from(int site) {
    struct { int site; const char *rest[8]; } info = {site};
    is_inside = site == 1;
    if (callback && is_enabled) callback(user, 1, 17, &info);
    is_inside = 0;
}
int cuCtxSynchronize(void) { returns_from(0); returns_from(1); return 0; }
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ctypes.CDLL:
    """CUPTI and CUDA's driver, as loaded by this process."""
    path = tmp_path / "libcupti.so.12"
    build_library(STAND_IN, path)
    maps = tmp_path / "maps"
    maps.write_text(f"7f2000-7f3000 r-xp 0 08:01 34  {path}\n")
    monkeypatch.setattr(cupti, "_MAPS", maps)
    monkeypatch.setattr(cupti, "_DRIVER", str(path))
    monkeypatch.setenv("TEARDOWN_CUPTI", "1")
    return ctypes.CDLL(str(path))


def counts(library: ctypes.CDLL) -> tuple[int, ...]:
    names = ("subscribed", "unsubscribed", "finalized", "finalized_inside_an_exit")
    return tuple(ctypes.c_int.in_dll(library, name).value for name in names)


def test_it_is_finalized_once_a_window_while_a_call_of_cuda_returns(library: ctypes.CDLL) -> None:
    for number in (1, 2):
        cupti.detach_on_request()
        assert counts(library) == (number,) * 4
    library.cuCtxSynchronize()
    assert counts(library) == (2,) * 4


def test_calls_of_other_threads_do_not_finalize_it(
    library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The training's own thread does not call CUDA here: nothing is finalized, and nothing stays subscribed."""

    class Driver:
        def cuCtxSynchronize(self) -> None:
            other = threading.Thread(target=library.cuCtxSynchronize)
            other.start()
            other.join()

    assert not cupti._detach(library, Driver())
    assert counts(library) == (1, 1, 0, 0)


def test_it_stays_attached_beside_another_subscriber(
    library: ctypes.CDLL, messages: list[str]
) -> None:
    ctypes.c_int.in_dll(library, "refuses").value = 1
    cupti.detach_on_request()
    assert counts(library) == (0, 0, 0, 0)
    assert messages == ["TEARDOWN_CUPTI: CUPTI stays attached: it accepts no subscriber"]


@pytest.mark.parametrize("value", ["", "0"])
def test_it_stays_attached_unless_asked(
    library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("TEARDOWN_CUPTI", value)
    cupti.detach_on_request()
    assert counts(library) == (0, 0, 0, 0)


def test_a_process_without_cupti_or_driver_is_left_alone(
    library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, messages: list[str]
) -> None:
    monkeypatch.setattr(cupti, "_DRIVER", "libnosuch.so")
    cupti.detach_on_request()
    (tmp_path / "maps").write_text("")
    cupti.detach_on_request()
    assert counts(library) == (0, 0, 0, 0)
    assert messages == []


def test_each_window_of_a_gpu_ends_so(library: ctypes.CDLL) -> None:
    """Windows of this machine's processor, of a recorder that takes it for a GPU."""
    paddle = pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
    from ppprof.capture.recording.recorder import Recorder
    from ppprof.capture.recording.targets import Targets
    from ppprof.config import ProfilerConfig

    for is_gpu in (True, False):
        targets = Targets(("cpu",))
        targets.is_gpu = is_gpu
        recorder = Recorder(ProfilerConfig(enable=True), targets=targets)
        for _ in range(2):
            recorder.prepare()
            recorder.start()
            paddle.ones([1])
            recorder.take()
        recorder.close()
        assert counts(library) == (2,) * 4


def test_a_library_that_was_replaced_on_disk_is_the_one_in_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by ``pip install -U`` in a job of days: /proc/self/maps calls its file deleted."""
    maps, path = tmp_path / "maps", tmp_path / "libcupti.so.77"
    monkeypatch.setattr(cupti, "_MAPS", maps)
    maps.write_text(f"7f2000-7f3000 r-xp 0 08:01 34  {path} (deleted)\n")
    assert cupti.refusal(loads=True) == ""
    build_library(
        "int cuptiActivityEnable(int kind) { return 0; } int cuptiActivityDisable(int kind) { return 0; }",
        path,
        "-Wl,-soname,libcupti.so.77",
    )
    library = ctypes.CDLL(str(path))
    path.unlink()
    assert cupti._loaded()._handle == library._handle
    assert cupti.refusal(loads=True) == ""
