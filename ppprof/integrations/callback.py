"""The base class of the callbacks for several frameworks: it opens and closes a session in hooks."""

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
    """Opens a session when the training begins, and closes it when the training ends.

    Frameworks do not report exceptions to callbacks. So after an exception the recording is saved
    only when the program ends, or at once if ``with callback:`` surrounds the training.

    Args:
        profiler: the ``Profiler`` block: typed, as a mapping, or the path of a YAML file.

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
        """The session of `ppprof.attach`; outside of the training, a session that does nothing."""

    def begin(self) -> None:
        """Open a session with `ppprof.attach`; first close a session that an exception left open."""
        self.end()
        self.session = attach(self._profiler)

    def end(self) -> None:
        """Close the session; do nothing without an open session."""
        self._finish(None)

    def pause(self) -> None:
        """Stop counting step time until `resume`; if a pause is open already, it goes on."""
        self.resume()
        self._pause.enter_context(self.session.paused())

    def resume(self) -> None:
        """Count step time again; do nothing without a pause."""
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
