"""Which code is the user's: neither Python's, nor of an installed package, nor Paddle's, nor ours."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, FrameType

from ppprof.packages import INSTALLED

TRAINERS = ("paddlenlp", "paddleformers", "paddlefleet")
"""Packages whose lines count as the user's: they have the loop of the training and the layers of its
model, and all that a script has of both may be the one line ``trainer.train()``."""


class UserFiles(dict[str, "tuple[str, bool]"]):
    """Path of a file, and whether it is the user's, by the path in its code.

    The path is relative to a folder, of one of `TRAINERS` to where packages are installed. That of a file outside of
    the folder leads there from it, ``../models/net.py``, if the process was started in it: a training may
    go to another one, which is not known later. It stays absolute if they have no more than one folder below the root in common.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.places: dict[str, Path] = {}
        """Where the files are, by the paths that are shown."""
        self._goes_up = os.environ.get("PWD") == str(folder)
        self.since_s = time.time()
        """What is written later is another version than the one that runs."""
        paths = sysconfig.get_paths()
        kinds = ("stdlib", "platstdlib", "purelib", "platlib")
        packages = [sys.modules.get(name) for name in ("ppprof", "paddle")]
        own, *others = [Path(each.__file__ or "").resolve().parent for each in packages if each]
        self._harness = own / "train"
        self._foreign = {own, *others, *(Path(paths[kind]).resolve() for kind in kinds)}

    def __missing__(self, file: str) -> tuple[str, bool]:
        path = Path(file)
        shown, is_own = file, False
        if not file.startswith("<"):
            resolved = (self.folder / path).resolve()
            folders = resolved.parents
            is_foreign = self._harness not in folders and self._foreign.intersection(folders)
            is_own = not (is_foreign or INSTALLED.search(file) or _GENERATED in file)
            trainer = _OF_TRAINER.search(str(resolved))
            if trainer:
                shown, is_own = trainer["shown"], True
        if shown is file and not file.startswith("<"):
            shown = self._relative(path, is_own=is_own)
        self.places[shown] = (self.folder / path).resolve()
        self[file] = shown, is_own
        return self[file]

    def lines_of(self, file: str) -> Sequence[str]:
        """Return the lines of a regular file below the folder, as it was loaded; empty for any other file.

        Args:
            file: its path as it is shown.
        """
        try:
            # Only a worker of a DataLoader may have run it.
            path = self.places.get(file, (self.folder / file).resolve())
            is_below = not Path(file).is_absolute() and self.folder.resolve() in path.parents
            if not is_below or not path.is_file():
                return ()
            status = path.stat()
            if status.st_size > _MOST_BYTES or status.st_mtime > self.since_s:
                return ()
            return path.read_text(encoding="utf-8", errors="replace").split("\n")
        except OSError:
            return ()

    def _relative(self, path: Path, *, is_own: bool) -> str:
        """Return a path as it leads there from the folder: ``../models/net.py``."""
        absolute = os.path.normpath(self.folder / path)
        has_common = len(Path(os.path.commonpath((absolute, self.folder))).parts) > 2
        if self.folder in Path(absolute).parents or (is_own and has_common and self._goes_up):
            return os.path.relpath(absolute, self.folder)
        return str(path)


def raised_at(error: BaseException, files: UserFiles) -> str:
    """Return the user's innermost line that an exception came through, ``train.py:41 step``; "" without one."""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        shown, is_own = files[frame.f_code.co_filename]
        if is_own:
            return f"{shown}:{line} {frame.f_code.co_name}"
    return ""


def is_own_class(kind: type, files: UserFiles) -> bool:
    """Return whether a class is the user's, or of a notebook; no code of the training runs."""
    try:
        name = type.__getattribute__(kind, "__module__")
        module = sys.modules.get(name) if type(name) is str else None
        file = object.__getattribute__(module, "__dict__").get("__file__")
    except AttributeError:  # without a module, as classes of SWIG are
        return False
    return files[file][1] if type(file) is str else name == "__main__"


class OwnLines:
    """The user's lines from which functions were called.

    Args:
        files: the files of the training's code.
    """

    def __init__(self, files: UserFiles) -> None:
        self._files = files
        self._is_own: dict[int, tuple[bool, CodeType]] = {}
        """By the identity of a code, which stays alive here: a hash of its contents would cost more."""
        self._rows: dict[tuple[int, int], int] = {}
        self._lines: list[tuple[CodeType, int]] = []
        self._functions: dict[int, CodeType] = {}
        """The function around a comprehension, by the identity of its code."""

    def around(self, frame: FrameType | None) -> int:
        """Return a number for the user's innermost line around a frame; -1 without one."""
        known = self._is_own
        while frame is not None:
            code = frame.f_code
            kind = known.get(id(code)) or self._learnt(code)
            if kind[0]:
                row = self._rows.get((id(code), frame.f_lasti))
                return self._row(frame) if row is None else row
            frame = frame.f_back
        return -1

    def two_around(self, frame: FrameType | None) -> tuple[int, int]:
        """Return the number of `around`, and that of the user's line that calls its function.

        A comprehension, which has a frame of its own until Python 3.11, is a part of the function around it.
        """
        known, inner = self._is_own, -1
        inlined: CodeType | None = None
        # As `around`, without its calls: each operator of a first step pays for it.
        while frame is not None:
            code = frame.f_code
            kind = known.get(id(code)) or self._learnt(code)
            if kind[0]:
                row = self._rows.get((id(code), frame.f_lasti))
                if row is None:
                    row = self._row(frame)
                if inner < 0:
                    inner = row
                    inlined = code if code.co_name in _COMPREHENSIONS else None
                elif inlined is None:
                    return inner, row
                elif code.co_name not in _COMPREHENSIONS:
                    self._functions[id(inlined)] = code
                    inlined = None
            frame = frame.f_back
        return inner, -1

    def _learnt(self, code: CodeType) -> tuple[bool, CodeType]:
        kind = self._is_own[id(code)] = self._files[code.co_filename][1], code
        return kind

    def _row(self, frame: FrameType) -> int:
        """Return the number of a new line."""
        row = self._rows[id(frame.f_code), frame.f_lasti] = len(self._lines)
        self._lines.append((frame.f_code, frame.f_lineno or 0))
        return row

    def code(self, row: int) -> CodeType:
        """Return the code of the function that has a line, by a number of `two_around`."""
        code = self._lines[row][0]
        return self._functions.get(id(code), code)

    def place(self, row: int) -> tuple[str, str, int]:
        """Return the file, the function and the line of a number of `around`."""
        code, line = self._lines[row]
        return self._files[code.co_filename][0], function_name(code), line

    def call_stack(self, row: int) -> str:
        """Return a line as Paddle writes call stacks: ``File "train.py", line 3, in log``; "" for -1."""
        if row < 0:
            return ""
        file, function, line = self.place(row)
        return f'File "{file}", line {line}, in {function}'


def function_name(code: CodeType) -> str:
    """Return the name of a function; for a comprehension, that of the function around it."""
    name = _INLINE.sub("", getattr(code, "co_qualname", code.co_name))
    return _BY_SOT.sub(r"\1", name)


_MOST_BYTES = 2 << 20
"""Largest file whose lines are kept."""
_GENERATED = "paddle/to_static_tmp/"
"""Part of the paths of the code that ``to_static`` generates."""
_OF_TRAINER = re.compile(rf"{INSTALLED.pattern}(?P<shown>(?:{'|'.join(TRAINERS)})/.*)")
"""The path of a file of one of `TRAINERS`, in any environment: a user's packages are in another folder."""
_COMPREHENSIONS = frozenset(("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>"))
_BY_SOT = re.compile(r"^[#$]+(?:[^@]*@)?(.+)_[0-9a-f]{5}$")
"""The name of a function that Paddle's SOT has translated, ``#forward_0a3f2``, or of its rest, ``$resume_0@forward_0a3f2``."""
_INLINE = re.compile(r"(\.<locals>)?\.<(listcomp|dictcomp|setcomp|genexpr)>$")
"""What a comprehension adds to the name of its function."""
