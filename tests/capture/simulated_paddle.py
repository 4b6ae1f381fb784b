"""A package named paddle that records a window of one kernel, or fails as Paddle does."""

from __future__ import annotations

import textwrap
from pathlib import Path

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


def make(site: Path) -> Path:
    """Write the package below ``site``, without a fault, and return its folder."""
    package = site / "paddle"
    (package / "base").mkdir(parents=True)
    (package / "base" / "__init__.py").write_text("from . import core")
    (package / "base" / "core.py").write_text(CORE)
    (package / "version").mkdir()
    (package / "version" / "__init__.py").write_text("full_version = '3.3.1'")
    plant(package)
    return package


def plant(package: Path, fault: str = "", *, kernels: bool = True, profiler: bool = True) -> None:
    """Plant a fault: Python code that runs as the package is imported."""
    flags = f"KERNELS = {kernels}\nNO_PROFILER = {not profiler}\n"
    (package / "__init__.py").write_text(PADDLE + flags + textwrap.dedent(fault))
