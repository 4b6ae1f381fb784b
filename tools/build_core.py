"""Compile the reader's C core into the package; also the hook of ``pip install`` and of wheels.

    python tools/build_core.py

writes ``ppprof/trace/fastpath/native/_core.so``, as ``make`` does when a C source has changed.
``$CC`` is the compiler if it is set, also one for another machine (``aarch64-linux-gnu-gcc``), else
the first of cc, gcc and clang; ``$CFLAGS`` is added to the options. The library needs nothing but libc, and no header of Python, so one wheel serves all
versions of Python on a platform.

Without a compiler, or if it fails, the wheel is a pure one, and ppprof reads without it.

A wheel that is built on Linux has the tag ``linux_x86_64``, which PyPI does not take. Before a
release, run ``auditwheel repair dist/*.whl``: it checks that the library needs no newer glibc than
2.17, and writes the same wheel with the tag ``manylinux_2_17_x86_64``.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

FOLDER = Path("ppprof", "trace", "fastpath", "native")
LIBRARY = FOLDER / "_core.so"
OPTIONS = (
    *("-std=c99", "-O3", "-ffp-contract=off", "-fPIC", "-shared", "-fvisibility=hidden"),
    *("-Wall", "-Wextra"),
)
"""``-ffp-contract=off``: every machine computes the same numbers."""


class BuildError(Exception):
    """The library cannot be compiled; the message says why."""


class NoCompilerError(BuildError):
    """This machine has no compiler."""


def build(root: Path, options: tuple[str, ...] = ()) -> Path:
    """Compile the library of the checkout at ``root`` and return its path.

    The library appears when it is complete: other processes may be loading it.

    Args:
        root: folder of the package's folder.
        options: further options of the compiler.

    Raises:
        NoCompilerError: there is no compiler.
        BuildError: the compiler fails.
    """
    library = root / LIBRARY
    sources = sorted([*library.parent.glob("*.c"), *library.parent.glob("*.h")])
    source_hash = hashlib.sha256(b"".join(file.read_bytes() for file in sources)).hexdigest()
    hidden = library.with_name(f".{library.name}.{os.getpid()}")
    command = [
        *_compiler(),
        *OPTIONS,
        *shlex.split(os.environ.get("CFLAGS", "")),
        *options,
        f'-DPPPROF_SOURCE_HASH="{source_hash}"',
        *("-o", str(hidden)),
        *(str(source) for source in sources if source.suffix == ".c"),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BuildError(f"{shlex.join(command)} failed:\n{done.stderr.strip()}")
        hidden.replace(library)
    except OSError as error:
        raise BuildError(f"{command[0]}: {error.strerror or error}") from error
    finally:
        hidden.unlink(missing_ok=True)
    return library


def _compiler() -> list[str]:
    if os.environ.get("CC"):
        return shlex.split(os.environ["CC"])
    if sys.platform == "win32":
        raise NoCompilerError("set CC to a compiler that takes the options of gcc")
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name):
            return [name]
    raise NoCompilerError("found none of cc, gcc and clang; install one or set CC")


def wheel_tag() -> str:
    """Return the tag of a wheel with the library: any Python 3 on the compiler's platform.

    On Linux, ``auditwheel repair`` replaces it by the tag of the oldest system with all functions
    that the library calls.
    """
    name = sysconfig.get_platform()
    if sys.platform == "darwin":  # Python may be built for two machines, the library is for one
        major, minor = platform.mac_ver()[0].split(".")[:2]
        version = f"{major}.{minor if major == '10' else 0}"  # pip knows no minor versions since 11
        name = f"macosx-{version}-{platform.machine()}"
    elif sys.platform == "linux" and os.environ.get("CC"):  # it may compile for another machine
        command = [*_compiler(), "-dumpmachine"]
        target = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        name = f"linux-{target.partition('-')[0]}" if "-linux" in target else name
    return f"py3-none-{name.replace('-', '_').replace('.', '_')}"


def get_build_hook() -> Any:
    """Return the class that hatchling calls for wheels and editable installs."""
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface

    class CoreBuildHook(BuildHookInterface):  # type: ignore[misc]
        """Adds the compiled library to a wheel."""

        def initialize(self, version: str, build_data: dict[str, Any]) -> None:
            """Compile the library; without one, let the wheel be a pure one."""
            library = Path(self.root) / LIBRARY
            try:
                build(Path(self.root))
            except BuildError as error:
                library.unlink(missing_ok=True)  # of another version of the source
                self.app.display_warning(
                    f"no compiled core, ppprof will read traces without it: {error}"
                )
                return
            build_data["artifacts"].append(f"/{LIBRARY.as_posix()}")
            build_data["pure_python"] = False
            build_data["tag"] = wheel_tag()

    return CoreBuildHook


def main() -> int:
    """Compile the library of this checkout; return 1 if that fails.

    Without a compiler, print a message and return 0: all of ppprof works without the library.
    """
    try:
        print(build(Path(__file__).parents[1], ("-Werror",)))
    except NoCompilerError as error:
        print(f"build_core: ppprof will read traces without it: {error}", file=sys.stderr)
    except BuildError as error:
        print(f"build_core: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
