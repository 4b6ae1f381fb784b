"""A simulated device: a plugin for Paddle, built by g++, whose faults can be switched on.

``plugin.cc`` says what it does, and which environment variables switch what. `variables` returns the
environment of a program that has the device.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest

NAME = "testdevice"
"""Paddle's name of the device type: ``paddle.set_device("testdevice")``."""

_SOURCE = Path(__file__).with_name("plugin.cc")


def build(folder: Path) -> Path:
    """Build the plugin in a folder, and return the path of the library.

    Tests are skipped without g++ or Paddle.
    """
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed: it builds the test device")
    paddle = importlib.util.find_spec("paddle")
    if paddle is None or paddle.origin is None:
        pytest.skip("Paddle is not installed: the test device is a plugin of it")
    wheel = Path(paddle.origin).parent
    include, base, libs = wheel / "include", wheel / "base", wheel / "libs"
    target = folder / f"lib{NAME}.so"
    command = ["g++", "-O1", "-std=c++17", "-fPIC", "-shared", "-w", "-o", target, _SOURCE]
    command += [f"-DTEST_DEVICE={NAME}", f'-DTEST_DEVICE_NAME="{NAME}"']
    command += [f"-I{include}", f"-I{include / 'third_party'}", f"-L{base}", f"-L{libs}"]
    libraries = ("libpaddle.so", "libphi_core.so", "libphi.so", "libcommon.so", "libmklml_intel.so")
    command += [*(f"-l:{library}" for library in libraries), "-lrt", "-lpthread"]
    command += [f"-Wl,-rpath,{base}:{libs}"]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return target


def variables(plugin: Path, **switches: object) -> dict[str, str]:
    """Return environment variables with which Paddle loads the device.

    Args:
        plugin: result of `build`.
        switches: faults and lengths, as ``plugin.cc`` names them: ``variables(plugin, STUCK=3)``.
    """
    # Views of tensors need kernels that this device does not have.
    own = {"CUSTOM_DEVICE_ROOT": str(plugin.parent), "FLAGS_use_stride_kernel": "0"}
    return {**own, **{f"PPPROF_TEST_DEVICE_{key}": str(value) for key, value in switches.items()}}
