"""What tests of a capture share."""

from __future__ import annotations

import pytest

from ppprof.capture.output import log_to_stderr


@pytest.fixture(autouse=True)
def _log_to_stderr(_logger: None) -> None:
    """Log as `attach` does."""
    log_to_stderr()
