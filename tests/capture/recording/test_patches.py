"""Wrappers are in every module that holds a function while they are installed, and in no other place."""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
pytestmark = pytest.mark.paddle

from ppprof.capture.process import without_collection  # noqa: E402
from ppprof.capture.recording.patches import ModuleWrappers  # noqa: E402

FUNCTIONS = [lambda: 0, lambda: 1, lambda: 2]
WRAPPERS = [lambda: 3, lambda: 4, lambda: 5]
PREFIX = "ppprof_test_module_"
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("import"), st.integers(0, 4), st.integers(0, 2)),
        st.tuples(st.just("unload"), st.integers(0, 4), st.just(0)),
        st.tuples(st.just("window"), st.just(0), st.just(0)),
    ),
    max_size=20,
)


@pytest.fixture
def no_modules() -> Iterator[None]:
    yield
    for name in [name for name in sys.modules if name.startswith(PREFIX)]:
        del sys.modules[name]


def held() -> list[object]:
    """What the names of the modules hold, other than modules have by themselves."""
    modules = [module for name, module in sys.modules.items() if name.startswith(PREFIX)]
    return [value for module in modules for key, value in vars(module).items() if key[:1] == "f"]


@given(events=EVENTS, in_window=EVENTS)
def test_wrappers_are_wherever_the_functions_were(no_modules, events, in_window):
    """Modules are imported and unloaded between windows and in them; some import a wrapper then."""
    wrappers = ModuleWrappers()
    for function, wrapper in zip(FUNCTIONS, WRAPPERS):
        wrappers.add(function, wrapper)
    wrappers.search()
    values = FUNCTIONS

    def happen(kind: str, module: int, function: int) -> None:
        name = f"{PREFIX}{module}"
        if kind == "import":
            names = vars(sys.modules.setdefault(name, types.ModuleType(name)))
            names[f"f{len(names)}"] = values[function]
        elif kind == "unload":
            sys.modules.pop(name, None)

    for event in [*events, ("window", 0, 0)]:
        if event[0] != "window":
            happen(*event)
            continue
        wrappers.install()
        assert all(value in WRAPPERS for value in held())
        values = WRAPPERS
        for each in in_window:
            happen(*each)
        values = FUNCTIONS
        wrappers.uninstall()
        assert all(value in FUNCTIONS for value in held())


@pytest.mark.parametrize("is_enabled", [True, False])
def test_collection_is_as_it_was_afterwards(is_enabled: bool) -> None:
    was_enabled = gc.isenabled()
    try:
        (gc.enable if is_enabled else gc.disable)()
        with without_collection():
            assert not gc.isenabled()
        assert gc.isenabled() == is_enabled
    finally:
        (gc.enable if was_enabled else gc.disable)()
