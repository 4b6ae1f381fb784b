"""Choose the core that reads traces: the compiled one (``native``), or libraries (``python``).

Both return the same tables. The compiled core takes a tenth of the processor time to read JSON. It is
used if its library is there and was compiled from the C sources beside it. The environment variable
``PPPROF_CORE``, ``native`` or ``python``, overrides the choice.

This module imports no numpy, because ``ppprof --version`` calls it.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ppprof.errors import UsageError

NATIVE, PYTHON = "native", "python"
VARIABLE = "PPPROF_CORE"
"""Environment variable with the name of a core; unset or empty for the best one."""
FOLDER = Path(__file__).parent / "native"
"""The C sources, and the library that ``tools/build_core.py`` compiles from them."""
LIBRARY = "_core.so"
_NO_MEMORY = -2


class Core(NamedTuple):
    """A core, and the reason why it is used."""

    name: str
    """`NATIVE` or `PYTHON`."""
    reason: str
    library: ctypes.CDLL | None
    """The library of the compiled core; None for `PYTHON`."""


def choose() -> Core:
    """Return the core that reads traces.

    Raises:
        UsageError: ``PPPROF_CORE`` has another value than the names of cores, or it is ``native``
            and the library cannot be used.
    """
    wanted = os.environ.get(VARIABLE, "")
    if wanted not in ("", NATIVE, PYTHON):
        raise UsageError(f"{VARIABLE}={wanted}: expected {NATIVE} or {PYTHON}, or no value")
    if wanted == PYTHON:
        return Core(PYTHON, f"{VARIABLE}={PYTHON}", None)
    library, problem = load(FOLDER)
    if library is None and wanted == NATIVE:
        raise UsageError(
            f"{VARIABLE}={NATIVE}: {problem}; install a wheel for this platform, or run `python "
            f"tools/build_core.py` in a checkout, or unset {VARIABLE}"
        )
    if library is None:
        return Core(PYTHON, problem, None)
    return Core(
        NATIVE, f"{VARIABLE}={NATIVE}" if wanted else "compiled from these sources", library
    )


def library() -> ctypes.CDLL | None:
    """Return the library of the compiled core; None for `PYTHON`.

    Raises:
        UsageError: as `choose`.
    """
    return choose().library


def call(name: str, *arguments: Any) -> int | None:
    """Call a function of the compiled core that returns an int64; return None without the core.

    Args:
        name: the function's name, without its prefix ``ppprof_``.
        arguments: int64 numbers, arrays whose items lie one after another, and None for NULL. The
            function's declaration says which, and of which dtype and length each array is.

    Raises:
        MemoryError: the function returns -2.
        UsageError: as `choose`.
    """
    loaded = library()
    if loaded is None:
        return None
    function = getattr(loaded, f"ppprof_{name}")
    function.restype = ctypes.c_int64
    result: int = function(*map(_passed, arguments))
    if result == _NO_MEMORY:
        raise MemoryError(f"no memory for the arrays of {name}")
    return result


def _passed(argument: Any) -> Any:
    """Return an argument of a C function as ctypes passes it."""
    if argument is None:
        return None
    if isinstance(argument, int):
        return ctypes.c_int64(argument)
    assert argument.flags.c_contiguous
    return ctypes.c_void_p(argument.ctypes.data)


def describe() -> str:
    """Return the name of the core in use, and the reason in brackets; or why none can be used."""
    try:
        core = choose()
    except UsageError as error:
        return f"none ({error})"
    return f"{core.name} ({core.reason})"


@functools.cache
def load(folder: Path) -> tuple[ctypes.CDLL | None, str]:
    """Return the library in a folder; or None, and the reason why it cannot be used."""
    path = folder / LIBRARY
    if not path.is_file():
        return None, f"there is no compiled library {path.name}"
    try:
        if not _is_complete(path):
            return None, f"{path.name} is truncated"
        expected = source_hash(folder)
        library = ctypes.CDLL(str(path))
        library.ppprof_source_hash.restype = ctypes.c_char_p
        compiled = library.ppprof_source_hash()
    except (OSError, AttributeError) as error:
        return None, f"{path.name} cannot be loaded: {error}"
    if compiled != expected.encode():
        return None, f"{path.name} was compiled from other sources than those beside it"
    _declare(library)
    return library, ""


def _is_complete(path: Path) -> bool:
    """Return whether a library of Linux has all its bytes: loading a part of it ends the process.

    The headers of its sections are the last part of an ELF file.
    """
    content = path.read_bytes()
    if content[:5] != b"\x7fELF\x02" or len(content) < 64:  # another system's, or of 32 bits
        return len(content) >= 64
    order: Literal["little", "big"] = "little" if content[5] == 1 else "big"
    first = int.from_bytes(content[0x28:0x30], order)
    size, count = (int.from_bytes(content[place : place + 2], order) for place in (0x3A, 0x3C))
    return first + size * count <= len(content)


def source_hash(folder: Path) -> str:
    """Return the SHA-256 of all C sources in a folder, as ``tools/build_core.py`` computes it."""
    sources = sorted([*folder.glob("*.c"), *folder.glob("*.h")])
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()


def _declare(library: ctypes.CDLL) -> None:
    """Declare the arguments and results of the functions in ``scan.c``, ``range.c`` and ``events.c``."""
    size, number, pointer = ctypes.c_size_t, ctypes.c_int64, ctypes.c_void_p
    a_range = (ctypes.c_int32, number, number, size, size, pointer)
    for name, result, arguments in (
        ("ppprof_scanner_new", pointer, (ctypes.c_char_p, size, pointer)),
        ("ppprof_scanner_free", None, (pointer,)),
        ("ppprof_scanner_add", number, (pointer, pointer, size, number)),
        ("ppprof_scanner_add_range", ctypes.c_int32, (pointer, ctypes.c_char_p, size, *a_range)),
        ("ppprof_reader_add_range", ctypes.c_int32, (pointer, *a_range)),
        ("ppprof_store_finish", ctypes.c_int, (pointer,)),
        ("ppprof_store_take", pointer, (pointer, ctypes.c_uint32, pointer, pointer)),
        ("ppprof_free", None, (pointer,)),
        ("ppprof_store_texts", pointer, (pointer, pointer, pointer)),
        ("ppprof_store_ranges", pointer, (pointer, pointer)),
        ("ppprof_scanner_flows", number, (pointer,)),
        ("ppprof_reader_new", pointer, (ctypes.c_char_p, size, pointer)),
        ("ppprof_reader_free", None, (pointer,)),
        ("ppprof_reader_add", number, (pointer, pointer, size, number)),
        ("ppprof_reader_count", number, (pointer, ctypes.c_uint32)),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
