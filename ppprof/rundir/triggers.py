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
import uuid
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath

from ppprof.choices import MOST_TRIGGERED_STEPS
from ppprof.errors import UsageError
from ppprof.rundir.run_file import RunFile, has_folder, make_folder
from ppprof.topology import RankSelector

_FOLDER = "trigger"
_REQUEST = f"{_FOLDER}/request"
_RESPONSES = f"{_FOLDER}/answers.jsonl"
_MOST_BYTES = 1 << 16
_MOST_RESPONSE_BYTES = 1 << 22
"""Most bytes to read, from the end of the file: some 10,000 decisions."""


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


def accept_requests(run: Path) -> None:
    """Create the folder into which `write_request` writes.

    Raises:
        OSError: it cannot be created, or is a link.
    """
    make_folder(run, _FOLDER)


def request_path(run: Path) -> Path:
    """Return the path where rank 0 looks for a request."""
    return run / _REQUEST


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
    file, request_id = RunFile(run, _REQUEST), uuid.uuid4().hex
    try:
        file.write_new(json.dumps({"id": request_id, "steps": steps, "ranks": ranks}).encode())
    except FileExistsError as error:
        raise UsageError(f"{file}: another request waits for rank 0's next step") from error
    return request_id


def consume_request(run: Path) -> TriggerRequest | None:
    """Read and delete the pending request; return None if no request is pending.

    An invalid request is returned with ``problem`` set. An empty file is a valid request.

    Raises:
        OSError: the request cannot be deleted, such as a directory.
    """
    file = RunFile(run, _REQUEST)
    try:
        request = _parse_request(file.read(_MOST_BYTES))
    except FileNotFoundError:
        return None
    except OSError as error:
        request = TriggerRequest(problem=error.strerror or str(error))
    file.remove()
    return request


def remove_request(run: Path) -> None:
    """Delete the pending request, if there is one.

    Raises:
        OSError: it cannot be deleted.
    """
    with suppress(FileNotFoundError):
        RunFile(run, _REQUEST).remove()


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
    if steps is not None and (type(steps) is not int or not 1 <= steps <= MOST_TRIGGERED_STEPS):
        problem = f"steps {steps!r}: expected a whole number from 1 to {MOST_TRIGGERED_STEPS}"
        return TriggerRequest(id=request_id, problem=problem)
    return TriggerRequest(steps, ranks, request_id)


def append_response(run: Path, response: TriggerResponse) -> None:
    """Append a decision to ``trigger/answers.jsonl``.

    Raises:
        OSError: the file cannot be written.
    """
    RunFile(run, _RESPONSES).append(f"{json.dumps(asdict(response))}\n".encode())


def read_response(run: Path, request_id: str) -> TriggerResponse | None:
    """Return rank 0's decision on a request; None if it is not written yet or is unreadable."""
    with suppress(OSError):
        text, _ = RunFile(run, _RESPONSES).read_end(_MOST_RESPONSE_BYTES)
        for line in text.decode("utf-8", "replace").splitlines():
            # A line that is still being written, or foreign.
            with suppress(ValueError, TypeError, RecursionError):
                response = _checked(TriggerResponse(**json.loads(line)))
                if response.request == request_id:
                    return response
    return None


def _checked(response: TriggerResponse) -> TriggerResponse:
    """Return ``response`` unchanged if its values are valid."""
    numbers = [response.window, response.start, response.steps, *(response.ranks or [])]
    is_valid = (
        all(isinstance(text, str) for text in (response.why, response.request))
        and (response.refused is None or isinstance(response.refused, str))
        and isinstance(response.ranks, (list, type(None)))
        and all(type(n) is int and 0 <= n < 2**62 for n in numbers if n is not None)
        and None not in (response.ranks or [])
    )
    if not is_valid:
        raise ValueError(f"not a response: {response!r}")
    return response


def write_completion(
    run: Path, rank: int, window: int, files: Iterable[Path], lost: str | None
) -> None:
    """Record that all files of a rank's window are complete.

    Does nothing if there is no folder ``trigger/``: the job accepts no requests.

    Args:
        run: the run directory.
        rank: the rank.
        window: the number of the window.
        files: traces and tables of the window, inside ``run``.
        lost: which traces were not written, and why; None if all traces were written.

    Raises:
        OSError: the file cannot be written.
    """
    file = _completion(run, rank, window)
    if has_folder(run, _FOLDER):
        names = [str(path.relative_to(run)) for path in files]
        file.write(json.dumps({"files": names, "lost": lost}).encode())


def read_completion(run: Path, rank: int, window: int) -> tuple[list[Path], str | None] | None:
    """Return the files of a rank's window, once all are complete, and what was lost.

    Returns:
        (files, lost) as given to `write_completion`. ``files`` are the paths of traces and tables.
        ``lost`` says which traces were not written, and why; None if all traces were written.
        Instead of the pair, the function returns None if `write_completion` has not been called
        yet, or if its file is unreadable.
    """
    try:
        fields = _completion(run, rank, window).read_json(_MOST_BYTES)
        names = [PurePosixPath(name) for name in fields["files"]]
        if any(name.is_absolute() or ".." in name.parts for name in names):
            return None
        return [run / name for name in names], fields["lost"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _completion(run: Path, rank: int, window: int) -> RunFile:
    return RunFile(run, f"{_FOLDER}/rank_{rank:05d}_w{window}.json")
