"""VisualDL and browsers, which show traces and pages; nothing is lost without them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from ppprof.capture.doctor.checks import OK, Check

_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "firefox", "microsoft-edge")
_TRACE_PAGE = "its Trace page needs the internet: ppprof report and Perfetto show timelines, too"


def checks() -> Iterator[Check]:
    """Return a line for VisualDL and one for the browsers of this machine."""
    # VisualDL is not imported: that writes to ~/.visualdl.
    try:
        number = version("visualdl")
        reason = f"{number} is installed; {_TRACE_PAGE}"
        yield Check("VisualDL", OK, reason, values={"version": number})
    except PackageNotFoundError:
        reason = f"not installed; only VisualDL's own page needs it; {_TRACE_PAGE}"
        yield Check("VisualDL", OK, reason, "pip install 'ppprof[view]'")
    paths = [path for path in map(shutil.which, _BROWSERS) if path]
    reason = ", ".join(paths) or "none on this machine; pages open on any other machine"
    yield Check("browser", OK, reason, values={"paths": paths})
