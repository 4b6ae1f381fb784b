"""Windows asked for while a job runs: what ``ppprof trigger`` and rank 0 leave one another.

::

    profiler_log/
      trigger/request                 a window is asked for: JSON, or nothing at all (touch will do)
      trigger/answers.jsonl           what rank 0 has decided, a line each
      trigger/rank_00003_w2.json      all files of rank 3's window 2 are complete: their names

Rank 0 makes the directory when it attaches and takes the request away when it has read it.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ppprof.errors import UsageError
from ppprof.paths import write_atomically
from ppprof.topology import RankSelector

MOST_STEPS = 10_000
"""Of a window that is asked for."""

_FOLDER = "trigger"
_MOST_BYTES = 65536


@dataclass(frozen=True)
class TriggerRequest:
    """A window that somebody asks for; None where the config decides."""

    steps: int | None = None
    ranks: RankSelector | None = None
    id: str = ""
    """What its answer carries."""
    problem: str | None = None
    """Why it is none."""


@dataclass(frozen=True)
class TriggerResponse:
    """What rank 0 has decided about a window."""

    why: str
    """Who asked."""
    request: str = ""
    """Id of the request; "" for a window that a slow step has opened."""
    refused: str | None = None
    """Why there is no window; the rest is null then."""
    window: int | None = None
    start: int | None = None
    """Its first step."""
    steps: int | None = None
    ranks: list[int] | None = None
    """Ranks that record it."""


def request_path(run: Path) -> Path:
    """Where rank 0 looks for a request."""
    return run / _FOLDER / "request"


def write_request(run: Path, steps: int | None, ranks: RankSelector | None) -> str:
    """Leaves a request in a run directory: whole, or not at all.

    Returns:
        Its id.

    Raises:
        UsageError: another request waits there.
        OSError: it cannot be written.
    """
    path, request_id = request_path(run), uuid.uuid4().hex
    text = json.dumps({"id": request_id, "steps": steps, "ranks": ranks})
    hidden = path.with_name(f".request.{request_id}")
    hidden.write_text(text, "utf-8")
    try:
        os.link(hidden, path)  # fails where there is one, which a rename would replace
    except FileExistsError as error:
        raise UsageError(f"{path}: another request waits for rank 0's next step") from error
    except OSError:  # a file system without hard links
        hidden.replace(path)
    finally:
        hidden.unlink(missing_ok=True)
    return request_id


def consume_request(run: Path) -> TriggerRequest | None:
    """The request that waits, which is none any more; None where none does.

    Raises:
        OSError: it is there, and cannot be read or taken away.
    """
    path = request_path(run)
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES)
    except FileNotFoundError:
        return None
    path.unlink()
    return _request(text)


def _request(text: bytes) -> TriggerRequest:
    if not text.strip():
        return TriggerRequest()
    try:
        given = json.loads(text)
    except ValueError:
        return TriggerRequest(problem="no JSON")
    if not isinstance(given, dict):
        return TriggerRequest(problem="no JSON object")
    request_id, steps, ranks = str(given.get("id", "")), given.get("steps"), given.get("ranks")
    if steps is not None and (type(steps) is not int or not 1 <= steps <= MOST_STEPS):
        problem = f"steps {steps!r}: expected a whole number from 1 to {MOST_STEPS}"
        return TriggerRequest(id=request_id, problem=problem)
    return TriggerRequest(steps, ranks, request_id)


def append_response(run: Path, answer: TriggerResponse) -> None:
    """Adds a decision.

    Raises:
        OSError: it cannot be written.
    """
    with (run / _FOLDER / "answers.jsonl").open("a", encoding="utf-8") as file:
        file.write(f"{json.dumps(asdict(answer))}\n")


def read_response(run: Path, request_id: str) -> TriggerResponse | None:
    """What was decided about a request; None where nothing is yet."""
    with suppress(OSError):
        text = (run / _FOLDER / "answers.jsonl").read_text("utf-8", "replace")
        for line in text.splitlines():
            with suppress(ValueError, TypeError):  # a line that is still being written
                answer = TriggerResponse(**json.loads(line))
                if answer.request == request_id:
                    return answer
    return None


def write_completion(
    run: Path, rank: int, window: int, files: Iterable[Path], lost: str | None
) -> None:
    """Says that all files of a rank's window are complete, where windows can be asked for.

    Raises:
        OSError: it cannot be written.
    """
    path = _files_path(run, rank, window)
    if path.parent.is_dir():
        found: dict[str, Any] = {"files": [str(file.relative_to(run)) for file in files]}
        write_atomically(path, json.dumps({**found, "lost": lost}).encode())


def read_completion(run: Path, rank: int, window: int) -> tuple[list[Path], str | None] | None:
    """The files of a rank's window and what was lost of them, if anything; None: not complete."""
    try:
        found = json.loads(_files_path(run, rank, window).read_text("utf-8"))
        return [run / name for name in found["files"]], found["lost"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _files_path(run: Path, rank: int, window: int) -> Path:
    return run / _FOLDER / f"rank_{rank:05d}_w{window}.json"
