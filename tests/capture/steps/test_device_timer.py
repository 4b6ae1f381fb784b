"""Step times on a device that finishes its work later than the host launches it; clocks are fake."""

from __future__ import annotations

import logging
import os
import time
from typing import Any

import pytest

from ppprof.capture.steps import device_timer
from ppprof.capture.steps.device_timer import DeviceStepTimer
from ppprof.capture.steps.timer import StepCost, StepTime

MS = 1_000_000


class Device:
    """A device with a queue and a clock, both in ns; an event is the time at which it is reached."""

    def __init__(self) -> None:
        self.now = 1000
        self.done = 0
        self.num_made = 0
        self.pool: list[list[int]] = []
        self.fails = ""
        self.captures = False

    def launch(self, dur: int) -> None:
        self.done = max(self.done, self.now) + dur

    def clock(self) -> int:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += round(seconds * 1e9)

    def is_capturing(self) -> bool:
        return self.captures

    def record(self) -> Any:
        assert not self.captures
        if self.fails == "record":
            raise RuntimeError("CUDA error 700")
        if self.done <= self.now:
            return None
        event = self.pool.pop() if self.pool else []
        self.num_made += not event
        event[:] = [self.done]
        return event

    def is_over(self, event: list[int]) -> bool:
        assert not self.captures
        if self.fails == "query":
            raise RuntimeError("CUDA error 700")
        return event[0] <= self.now

    def reuse(self, event: list[int]) -> None:
        self.pool.append(event)

    def use_in_thread(self) -> None:
        pass


@pytest.fixture
def device() -> Device:
    return Device()


@pytest.fixture
def timer(device: Device) -> DeviceStepTimer:
    timer = DeviceStepTimer(device, device.clock, device.sleep, watches=False)
    timer.start()
    return timer


def known(timer: DeviceStepTimer) -> list[int]:
    costs = list(timer.take())
    assert all(cost.device_timed and not cost.excluded for cost in costs)
    return [cost.batch_cost_ns for cost in costs]


def test_a_step_that_ends_in_a_capture_ends_on_the_host_and_asks_nothing(
    device: Device, timer: DeviceStepTimer
) -> None:
    """The device works for 30 on step 0, and for 15 on step 2, from 40 on."""
    device.launch(30)
    device.now += 5
    timer.step()
    device.captures = True
    device.now += 30
    timer.step()
    timer.finish()  # a window may end here: nothing waits
    device.captures = False
    device.now += 5
    device.launch(15)
    timer.step()
    watch(timer, device, device.now + 20)
    costs = list(timer.take())
    assert [cost.device_timed for cost in costs] == [False, False, True]
    assert [cost.excluded for cost in costs] == [True, True, False]


def test_a_step_that_the_device_works_on_during_a_capture_ends_with_the_device(
    device: Device, timer: DeviceStepTimer
) -> None:
    """::

    host     0|    1|
    capture       |  |
    device   0000000000000000000
    """
    device.launch(100)
    device.now += 5
    timer.step()
    device.captures = True
    device.now += 30
    timer.step()
    device.captures = False
    watch(timer, device, device.now + 70)
    first, captured = timer.take()
    assert (first.device_timed, first.excluded) == (True, False)
    assert abs(first.batch_cost_ns - 100) <= 1
    assert (captured.device_timed, captured.excluded) == (False, True)


def watch(timer: DeviceStepTimer, device: Device, until: int) -> None:
    """Query every tick, as the thread does."""
    while device.now < until:
        device.now += 1
        timer.poll()


def test_a_step_ends_when_the_device_has_done_it(timer: DeviceStepTimer, device: Device) -> None:
    """::

    host     |1|2|3|
    device    11111 22222222 333
    steps    |1    |2       |3  |
    """
    for dur in (5, 8, 3):
        device.launch(dur)
        device.now += 1
        assert timer.step() == StepTime(None, None)
    assert known(timer) == []
    watch(timer, device, 1006)
    assert known(timer) == [5]
    watch(timer, device, 1100)
    assert known(timer) == [8, 3]
    assert len(device.pool) == device.num_made == 3


def test_a_host_that_waits_for_the_device_needs_no_event(
    timer: DeviceStepTimer, device: Device
) -> None:
    for dur in (5, 8):
        device.launch(dur)
        device.now += dur + 2
        timer.step()
        assert known(timer) == [dur + 2]
    assert device.num_made == 0


def test_events_are_used_again(timer: DeviceStepTimer, device: Device) -> None:
    for _ in range(50):
        device.launch(4)
        timer.step()
        watch(timer, device, device.now + 4)
    assert known(timer) == [4] * 50
    assert device.num_made == 1


def test_work_before_the_first_step_is_in_no_step(device: Device) -> None:
    device.launch(100)
    timer = DeviceStepTimer(device, device.clock, watches=False)
    timer.start()
    device.launch(7)
    timer.step()
    watch(timer, device, 2000)
    assert known(timer) == [7]


def test_a_pause_begins_and_ends_on_the_device(timer: DeviceStepTimer, device: Device) -> None:
    """::

    host     |1|eeeeeeeeee|2|
    device    11111 eeeeeeee 2222
    steps    |1    |        |2  |
    """
    device.launch(5)
    device.now += 1
    timer.step()
    with timer.paused(), timer.paused():
        device.launch(8)
        watch(timer, device, 1011)
    device.launch(4)
    device.now += 1
    timer.step()
    watch(timer, device, 1100)
    costs = [*timer.take()]
    assert [(cost.batch_cost_ns, cost.paused_ns) for cost in costs] == [(5, 0), (4, 8)]


def test_a_step_that_ends_in_a_pause_ends_with_its_begin(
    timer: DeviceStepTimer, device: Device
) -> None:
    device.launch(5)
    with timer.paused():
        device.launch(8)
        timer.step()
        watch(timer, device, 1050)
    device.launch(4)
    timer.step()
    watch(timer, device, 1100)
    assert known(timer) == [5, 4]


def test_steps_that_are_found_at_once_divide_the_time(
    timer: DeviceStepTimer, device: Device
) -> None:
    """A thread that holds Python's lock keeps the watching thread from its queries."""
    for _ in range(4):
        device.launch(10)
        timer.step()
    device.now += 40
    timer.poll()
    assert known(timer) == [10, 10, 10, 10]


def test_steps_end_at_the_latest_when_the_device_is_idle(
    timer: DeviceStepTimer, device: Device
) -> None:
    device.launch(10)
    timer.step()
    device.now += 30
    timer.step()  # the device is idle
    device.now += 5
    timer.poll()
    assert known(timer) == [15, 15]


def test_finishing_waits_for_the_device(timer: DeviceStepTimer, device: Device) -> None:
    device.launch(50 * MS)
    timer.step()
    device.launch(30 * MS)
    timer.step()
    timer.finish()
    assert known(timer) == [50 * MS, 30 * MS]


def test_a_device_that_does_not_finish_gives_the_hosts_time(
    timer: DeviceStepTimer, device: Device
) -> None:
    device.launch(50 * MS)
    timer.step()
    device.now += 50 * MS
    timer.poll()
    device.launch(10**15)
    device.now += 3 * MS
    timer.step()
    timer.finish()
    assert list(timer.take()) == [
        StepCost(50 * MS, device_timed=True),
        StepCost(3 * MS, device_timed=False, excluded=True),
    ]
    assert device.now < 1000 + 53 * MS + (device_timer.PATIENCE_S + 1) * 1e9


def test_without_waiting_the_device_is_not_asked(timer: DeviceStepTimer, device: Device) -> None:
    device.launch(10**15)
    device.now += 3
    timer.step()
    device.fails = "query"
    timer.finish(waits=False)
    assert list(timer.take()) == [StepCost(3, device_timed=False, excluded=True)]


@pytest.mark.parametrize("fails", ["record", "query"])
def test_after_an_error_steps_are_the_hosts(
    timer: DeviceStepTimer, device: Device, fails: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="ppprof")
    device.launch(50)
    device.now += 2
    timer.step()
    device.fails = fails
    device.now += 3
    timer.step()
    timer.poll()
    assert list(timer.take()) == [
        StepCost(2, device_timed=False, excluded=True),
        StepCost(3, device_timed=False, excluded=True),
    ]
    device.now += 7
    assert timer.step() == StepTime(7, None, device_timed=False)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        (
            "WARNING",
            "an event failed: CUDA error 700; from now on, step times are those of the host, which "
            "only launches work",
        )
    ]


def test_a_device_that_falls_too_far_behind_is_one_warning(
    device: Device, messages: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_timer, "MOST_PENDING", 3)
    timer = DeviceStepTimer(device, device.clock, watches=False)
    timer.start()
    device.launch(10**15)
    costs = []
    for _ in range(6):
        device.now += 5
        step = timer.step()
        costs += [cost.batch_cost_ns for cost in timer.take()]
    assert costs == [5, 5, 5, 5]
    assert step == StepTime(5, None, device_timed=False)
    assert messages == [
        "the device has not finished 3 steps; from now on, step times are those of the host, which "
        "only launches work"
    ]


def test_an_end_that_is_found_late_in_a_stall_is_excluded(
    timer: DeviceStepTimer, device: Device
) -> None:
    for _ in range(3):
        device.launch(30 * MS)
        timer.step()
    timer.stall(begins=True)
    device.now += 70 * MS
    timer.stall(begins=False)
    device.now += 20 * MS
    timer.poll()
    assert list(timer.take()) == [
        StepCost(35 * MS, device_timed=True, excluded=True),
        StepCost(35 * MS, device_timed=True, excluded=True),
        StepCost(20 * MS, device_timed=True),
    ]


def test_an_end_that_is_found_late_does_not_delay_the_next_query(
    timer: DeviceStepTimer, device: Device
) -> None:
    """The profiler's start stalls a training for half a second, in which the device does three short steps."""
    timer.stall(begins=True)
    for _ in range(3):
        device.launch(5 * MS)
        timer.step()
    device.now += 500 * MS
    timer.stall(begins=False)
    device.launch(5 * MS)
    timer.step()
    assert timer._pause_s() == 0.001


def test_finishing_does_not_wait_for_the_next_planned_query(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DeviceStepTimer, "_pause_s", lambda _timer: 600.0)

    def sleep(seconds: float) -> None:
        device.sleep(seconds)
        time.sleep(0.001)

    timer = DeviceStepTimer(device, device.clock, sleep)
    timer.start()
    device.launch(50 * MS)
    timer.step()
    timer.finish()
    (cost,) = timer.take()
    assert cost.device_timed
    timer.close()


def test_a_forked_child_records_no_event(
    timer: DeviceStepTimer, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: 1)
        device.fails = "record"
        with timer.paused():
            pass
        device.fails = ""
    device.now += 5
    timer.step()
    assert known(timer) == [5]


def test_the_thread_finds_the_end_of_a_step_and_ends_with_the_timer() -> None:
    device = Device()
    timer = DeviceStepTimer(device)
    timer.start()
    device.done, device.now = 2, 1
    timer.step()
    watcher = timer._watcher
    assert watcher is not None
    device.now = 2
    costs: list[StepCost] = []
    while not costs:
        costs = list(timer.take())
    assert costs[0].device_timed
    timer.close()
    assert not watcher.is_alive()
    assert timer.step().device_timed is False
