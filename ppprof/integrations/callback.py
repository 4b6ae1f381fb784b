"""The base class of callbacks for several frameworks: a session that opens and closes in hooks."""

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
"""A ``Profiler`` block: typed, as a mapping, or the path of a YAML file."""

Self = TypeVar("Self", bound="CallbackSession")


class CallbackSession:
    """A session that opens when the training begins and closes when it ends.

    Frameworks do not report exceptions to callbacks. After an exception the recording is saved
    when the program ends, or at once if ``with callback:`` surrounds the training.

    Args:
        profiler: the block.

    Raises:
        ConfigError: the block is invalid.
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
        """The session of `ppprof.attach`; outside of the training, one that does nothing."""

    def begin(self) -> None:
        """Attach; first close a session that an exception has left open."""
        self.end()
        self.session = attach(self._profiler)

    def end(self) -> None:
        """Close the session."""
        self._finish(None)

    def pause(self) -> None:
        """Exclude the time until `resume` from the steps: it is not training."""
        self.resume()
        self._pause.enter_context(self.session.paused())

    def resume(self) -> None:
        """End a pause, if there is one."""
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
