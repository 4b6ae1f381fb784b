"""Notebooks: what a cell shows, and the notebook in docs/, in a real kernel."""

from __future__ import annotations

import html
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ppprof
from ppprof.report import notebook
from ppprof.topology import Topology
from tests.fixtures.run_directories import run as run_of
from tests.fixtures.run_directories import step_lines

ROOT = Path(__file__).parents[2]
RUNS = ROOT / "tests/fixtures/runs"
DOCUMENT = ROOT / "docs/notebook.ipynb"


@pytest.fixture(scope="module")
def executed() -> list[str]:
    """The HTML of each code cell of docs/notebook.ipynb, "" for a cell without."""
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    document = nbformat.read(DOCUMENT, as_version=4)
    nbformat.validate(document)
    client = nbclient.NotebookClient(
        document, timeout=300, resources={"metadata": {"path": str(DOCUMENT.parent)}}
    )
    client.execute()
    return [
        "".join(str(output.get("data", {}).get("text/html", "")) for output in cell.outputs)
        for cell in document.cells
        if cell.cell_type == "code"
    ]


def test_the_document_shows_a_run_findings_tables_a_comparison_and_the_page(
    executed: list[str],
) -> None:
    run, findings, _, tables, operators, events, comparison, page = executed
    assert "slow_dataset" in run
    assert "rank 0" in run
    assert "input-bound" in findings
    assert "<table>" in findings
    assert {"model", "op"} <= set(re.findall(r"<b>(\w+)</b>", tables))
    assert "gpu" not in tables  # recorded on a CPU
    assert "<table" in operators
    assert "<table" in events
    assert "faster" in comparison
    assert "DataLoader" in comparison or "Dataloader" in comparison
    assert page.startswith("<iframe srcdoc=")


def test_the_page_in_a_cell_is_the_page_that_is_written(tmp_path: Path) -> None:
    run = ppprof.open(RUNS / "slow_dataset")
    page = ppprof.write_report(run)
    assert page is not None
    assert ppprof.write_report(run, tmp_path / "page.html") is None
    assert page.html == (tmp_path / "page.html").read_text(encoding="utf-8")
    (source,) = re.findall(r'srcdoc="([^"]*)"', page._repr_html_())
    assert html.unescape(source) == page.html


def test_a_run_without_windows_is_shown_by_its_step_times(tmp_path: Path) -> None:
    lines = step_lines(2_000_000, steps=5, noise=0)
    path = run_of(tmp_path / "log", [], topology=Topology.of(dp=2), step_lines=[lines, lines])
    shown = notebook.run_html(ppprof.open(path))
    rows = dict(re.findall(r"<td>(.*?)\s*</td><td.*?>(.*?)\s*</td>", shown))
    assert rows == {
        "run": str(path),
        "ranks": "ranks 0-1",
        "windows": "0",
        "topology": "dp 2",
        "steps": "5",
        "median step": "2 ms",
    }
    assert "ppprof.advise(run), ppprof.write_report(run)<" in shown


def test_names_from_a_trace_are_no_markup() -> None:
    table = notebook._table(["<b>name"], [["<script>alert(1)</script>"]])
    assert "<script>" not in table
    assert "<b>" not in table


def test_a_long_table_says_how_many_rows_it_leaves_out() -> None:
    run = ppprof.open(RUNS / "slow_dataset")
    text = notebook.tables_html(run.tables(["op"]))
    rest = run.summary("op").height - notebook.MOST_ROWS
    assert rest > 0
    assert f"{rest} more rows" in text
    assert text.count("<tr>") == notebook.MOST_ROWS + 1


def test_tables_are_handed_to_pandas() -> None:
    for name in ("pandas", "pyarrow"):
        pytest.importorskip(name, reason="needs the extra pandas")
    run = ppprof.open(RUNS / "slow_dataset")
    for table in (run.summary("op"), run.events(), ppprof.diff(run, run).operators):
        frame = table.to_pandas()
        assert frame.shape == table.shape
        assert frame["name"].astype(str).to_list() == table["name"].cast(str).to_list()


def test_dir_lists_the_library() -> None:
    assert [name for name in dir(ppprof) if not name.startswith("_")] == ppprof.__all__


def test_importing_ppprof_imports_nothing_of_notebooks_outside_of_them() -> None:
    code = "import sys, ppprof; print('ppprof.report.notebook' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("module", ["None", "types.ModuleType('IPython')"])
def test_importing_ppprof_does_not_fail_where_ipython_is_blocked_or_a_stub(module: str) -> None:
    code = f"import sys, types; sys.modules['IPython'] = {module}; import ppprof"
    subprocess.run([sys.executable, "-c", code], check=True)
