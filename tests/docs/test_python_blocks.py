"""The lines of Python that pages show for a loop and for remote functions run as they stand.

Names that a page leaves to its reader, such as ``loader``, are set here. Scripts are run by
``tests/jobs/test_documented_integrations.py``, sessions of Python by ``test_sessions``.
"""

from __future__ import annotations

import json
import multiprocessing
import pickle
import re
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
pytestmark = pytest.mark.paddle

from tests.fixtures import remote_functions  # noqa: E402

ROOT = Path(__file__).parents[2]


def run_only_block(page: str, heading: str, names: dict[str, Any]) -> None:
    """Run the one block of Python of a section with these global names, which get its own, too."""
    sections = (ROOT / page).read_text(encoding="utf-8").split("\n## ")
    (text,) = [section for section in sections if section.startswith(f"{heading}\n")]
    (block,) = re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
    exec(block, names)  # noqa: S102


@pytest.mark.parametrize(
    ("page", "heading"),
    [("README.md", "In your own loop"), ("docs/integrations.md", "Your own loop")],
)
def test_a_loop(page: str, heading: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    batches: list[int] = []
    evaluations: list[int] = []
    names = {
        "cfg": {"Profiler": {"enable": True, "timer_only": True}},
        "loader": range(12),
        "train_step": batches.append,
        "batch_size": 4,
        "time_to_evaluate": True,
        "evaluate": lambda: evaluations.append(len(batches)),
    }
    run_only_block(page, heading, names)
    assert batches == list(range(12))
    assert evaluations == ([] if page == "README.md" else list(range(1, 13)))
    (log,) = Path("profiler_log/steps").iterdir()
    steps = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    assert [step["num_samples"] for step in steps] == [4] * 12


def test_remote_functions() -> None:
    hosts: list[str] = []

    def carry(host: str, function: Any, *arguments: Any) -> Any:
        hosts.append(host)
        return pickle.loads(pickle.dumps(function))(*arguments)  # noqa: S301

    names: dict[str, Any] = {
        "ProcessPoolExecutor": ProcessPoolExecutor,
        "multiprocessing": multiprocessing,
        "encode": remote_functions.double,
        "batch": [1.0, -2.0],
        "carry": carry,
    }
    run_only_block("docs/hybrid.md", "Functions on other processes", names)
    assert hosts == ["host-b"]
    assert names["codes"] == [2.0, 0.0]
