"""What the callbacks of several frameworks share: a session from one hook of theirs to another."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, Union

from ppprof.capture import attach
from ppprof.capture.session import NoopSession, ProfilerSession
from ppprof.config import ProfilerConfig, load_profiler

Block = Union[ProfilerConfig, Mapping[str, Any], str, Path]
"""A ``Profiler`` block, typed or as a mapping, or the YAML file that has it."""

Self = TypeVar("Self", bound="CallbackSession")


class CallbackSession:
    """Opens with the training that a callback is told of, and closes with it.

    A framework tells no callback of an exception. What was recorded is saved all the same when
    the program ends, or at once in ``with callback:`` around the training.

    Args:
        profiler: the block.

    Raises:
        ConfigError: it is none.
    """

    def __init__(self, profiler: Block) -> None:
        super().__init__()
        if isinstance(profiler, (str, Path)):
            profiler = load_profiler(profiler).profiler
        elif isinstance(profiler, Mapping):
            profiler = ProfilerConfig.from_mapping(profiler)
        self._profiler = profiler
        self._pause = ExitStack()
        self.session: ProfilerSession = NoopSession()
        """What `ppprof.attach` gave; one that does nothing outside the training."""

    def begin(self) -> None:
        """Attaches; a session that an exception has left open is closed first."""
        self.end()
        self.session = attach(self._profiler)

    def end(self) -> None:
        """Closes the session."""
        self._finish(None)

    def pause(self) -> None:
        """What comes now is no training, until `resume`."""
        self.resume()
        self._pause.enter_context(self.session.paused())

    def resume(self) -> None:
        """Training goes on; does nothing where it was not paused."""
        self._pause.close()

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._finish(error)

    def _finish(self, error: BaseException | None) -> None:
        self.resume()
        session, self.session = self.session, NoopSession()
        session.__exit__(type(error) if error is not None else None, error, None)
