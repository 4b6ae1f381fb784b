"""Fixtures of the tests of readers."""

from __future__ import annotations

import pytest

from ppprof.trace.fastpath import core


@pytest.fixture(params=[core.NATIVE, core.PYTHON])
def each_core(request, monkeypatch) -> str:
    """Run the test with either core that reads fixed layouts; return the core's name."""
    if request.param == core.NATIVE and core.load(core.FOLDER)[0] is None:
        pytest.skip("needs the compiled core: run `python tools/build_core.py`")
    monkeypatch.setenv(core.VARIABLE, request.param)
    return request.param
