"""Memory that is left, read from files as the kernel writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ppprof.capture.free_memory import available_bytes

MIB = 1 << 20


@pytest.fixture
def machine(tmp_path: Path) -> tuple[Path, Path]:
    """A machine with 8 MiB left, and a process of the cgroup ``/job``."""
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (cgroups / "job").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal:  99999 kB\nMemAvailable:   8192 kB\n")
    (proc / "self/cgroup").write_text("0::/job\n")
    return proc, cgroups


def limit(folder: Path, most: str) -> None:
    (folder / "memory.max").write_text(f"{most}\n")
    (folder / "memory.current").write_text(f"{7 * MIB}\n")
    (folder / "memory.stat").write_text(f"anon 1\ninactive_file {2 * MIB}\n")


def test_a_machine_says_what_it_has(machine: tuple[Path, Path]) -> None:
    assert available_bytes(*machine) == 8 * MIB


@pytest.mark.parametrize(("most", "left"), [(10 * MIB, 5), (90 * MIB, 8), ("max", 8)])
def test_a_container_may_have_less(machine: tuple[Path, Path], most: object, left: int) -> None:
    limit(machine[1] / "job", str(most))
    assert available_bytes(*machine) == left * MIB


def test_without_files_of_the_kernel_nothing_is_known(tmp_path: Path) -> None:
    assert available_bytes(tmp_path, tmp_path) is None


def test_this_machine_says_something_or_nothing() -> None:
    left = available_bytes()
    assert left is None or left > 0
