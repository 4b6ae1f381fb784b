"""Requests for windows while a job runs: files that ``ppprof trigger`` and the ranks write.

::

    profiler_log/
      trigger/request                 a request: JSON, or an empty file (``touch`` is enough)
      trigger/answers.jsonl           rank 0's decisions, one per line
      trigger/rank_00003_w2.json      file names of rank 3's window 2, once all files are complete

Rank 0 creates ``trigger/`` when it attaches the profiler, and deletes a request after reading it.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from ppprof.errors import UsageError
from ppprof.paths import write_atomically
from ppprof.topology import RankSelector

MOST_STEPS = 10_000
"""Most steps of a window that can be requested."""

_FOLDER = "trigger"
_MOST_BYTES = 65536


@dataclass(frozen=True)
class TriggerRequest:
    """A request for a window."""

    steps: int | None = None
    """Number of steps; None for ``Profiler.trigger.steps``."""
    ranks: RankSelector | None = None
    """Ranks that record the window; None for ``Profiler.trigger.ranks``."""
    id: str = ""
    """Id that the response repeats; "" for an empty request file."""
    problem: str | None = None
    """Why the request is invalid; None if it is valid."""


@dataclass(frozen=True)
class TriggerResponse:
    """Rank 0's decision on a window: either ``refused``, or the other fields from ``window`` on."""

    why: str
    """Why the window was requested."""
    request: str = ""
    """Id of the request; "" for a window that a slow step opened."""
    refused: str | None = None
    """Why no window opens; None if a window opens. If it is set, the fields below stay None."""
    window: int | None = None
    """Number of the window."""
    start: int | None = None
    """First step of the window."""
    steps: int | None = None
    """Number of steps of the window."""
    ranks: list[int] | None = None
    """Ranks that record the window, ascending."""


def request_path(run: Path) -> Path:
    """Return the path where rank 0 looks for a request."""
    return run / _FOLDER / "request"


def write_request(run: Path, steps: int | None, ranks: RankSelector | None) -> str:
    """Write a request into a run directory, atomically.

    On a file system without hard links, the request replaces a pending one.

    Args:
        run: the run directory.
        steps: number of steps; None for ``Profiler.trigger.steps``.
        ranks: ranks that record the window; None for ``Profiler.trigger.ranks``.

    Returns:
        The id of the request.

    Raises:
        UsageError: another request is pending.
        OSError: the file cannot be written.
    """
    path, request_id = request_path(run), uuid.uuid4().hex
    text = json.dumps({"id": request_id, "steps": steps, "ranks": ranks})
    hidden = path.with_name(f".request.{request_id}")
    hidden.write_text(text, "utf-8")
    try:
        os.link(hidden, path)  # fails if a request exists, which a rename would replace
    except FileExistsError as error:
        raise UsageError(f"{path}: another request waits for rank 0's next step") from error
    except OSError:  # a file system without hard links
        hidden.replace(path)
    finally:
        hidden.unlink(missing_ok=True)
    return request_id


def consume_request(run: Path) -> TriggerRequest | None:
    """Read and delete the pending request; return None if no request is pending.

    An invalid request is returned with ``problem`` set. An empty file is a valid request.

    Raises:
        OSError: the request cannot be read or deleted.
    """
    path = request_path(run)
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES)
    except FileNotFoundError:
        return None
    path.unlink()
    return _parse_request(text)


def _parse_request(text: bytes) -> TriggerRequest:
    if not text.strip():
        return TriggerRequest()
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        return TriggerRequest(problem="not JSON")
    if not isinstance(fields, dict):
        return TriggerRequest(problem="not a JSON object")
    request_id, steps, ranks = str(fields.get("id", "")), fields.get("steps"), fields.get("ranks")
    if steps is not None and (type(steps) is not int or not 1 <= steps <= MOST_STEPS):
        problem = f"steps {steps!r}: expected a whole number from 1 to {MOST_STEPS}"
        return TriggerRequest(id=request_id, problem=problem)
    return TriggerRequest(steps, ranks, request_id)


def append_response(run: Path, response: TriggerResponse) -> None:
    """Append a decision to ``trigger/answers.jsonl``.

    Raises:
        OSError: the file cannot be written.
    """
    with (run / _FOLDER / "answers.jsonl").open("a", encoding="utf-8") as file:
        file.write(f"{json.dumps(asdict(response))}\n")


def read_response(run: Path, request_id: str) -> TriggerResponse | None:
    """Return rank 0's decision on a request; None if it is not written yet or is unreadable."""
    with suppress(OSError):
        text = (run / _FOLDER / "answers.jsonl").read_text("utf-8", "replace")
        for line in text.splitlines():
            with suppress(ValueError, TypeError):  # a line that is still being written
                response = TriggerResponse(**json.loads(line))
                if response.request == request_id:
                    return response
    return None


def write_completion(
    run: Path, rank: int, window: int, files: Iterable[Path], lost: str | None
) -> None:
    """Record that all files of a rank's window are complete.

    Does nothing if ``trigger/`` does not exist: the job accepts no requests.

    Args:
        run: the run directory.
        rank: the rank.
        window: the number of the window.
        files: traces and tables of the window, inside ``run``.
        lost: which traces were not written, and why; None if all traces were written.

    Raises:
        OSError: the file cannot be written.
    """
    path = _files_path(run, rank, window)
    if path.parent.is_dir():
        names = [str(file.relative_to(run)) for file in files]
        write_atomically(path, json.dumps({"files": names, "lost": lost}).encode())


def read_completion(run: Path, rank: int, window: int) -> tuple[list[Path], str | None] | None:
    """Return the files of a rank's window, once all are complete, and what was lost.

    Returns:
        (files, lost) as given to `write_completion`. ``files`` are the paths of traces and tables.
        ``lost`` says which traces were not written, and why; None if all traces were written.
        Instead of the pair, the function returns None if `write_completion` has not been called
        yet, or if its file is unreadable.
    """
    try:
        fields = json.loads(_files_path(run, rank, window).read_text("utf-8"))
        return [run / name for name in fields["files"]], fields["lost"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _files_path(run: Path, rank: int, window: int) -> Path:
    return run / _FOLDER / f"rank_{rank:05d}_w{window}.json"
