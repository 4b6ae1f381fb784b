"""What tests of a capture share."""

from __future__ import annotations

import importlib.util
import logging
import sys
from types import ModuleType

import pytest

from ppprof.capture import postprocess
from ppprof.capture.output import log_to_stderr
from tests.capture.fake_helper import NO_TRACES


@pytest.fixture(autouse=True)
def _log_to_stderr(_logger: None) -> None:
    """Log as `attach` does, and to the root logger, too: pytest 8 hears no other."""
    log_to_stderr()
    logging.getLogger("ppprof").propagate = True


@pytest.fixture
def lazy_module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module ``colorsys``, which is loaded when an attribute of it is first used."""
    spec = importlib.util.find_spec("colorsys")
    assert spec is not None
    assert spec.loader is not None
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "colorsys", module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def unfinished(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raw files stay in place: no child turns them into traces."""
    monkeypatch.setattr(postprocess, "_COMMAND", NO_TRACES)
