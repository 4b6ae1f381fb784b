"""``ppprof summary``, through ``main()`` and as real processes."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tqdm

from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.summaries.views import summarize
from ppprof.choices import ALL_VIEWS, SummaryOptions
from ppprof.cli import summary
from ppprof.cli.output import problem_of_output
from ppprof.config import ProfilerConfig
from ppprof.report.text.summary import TableOptions
from ppprof.trace import read
from ppprof.trace.formats import read_ranks
from tests.fixtures import gpu_traces
from tests.fixtures.rendered import render
from tests.fixtures.run_directories import make_run, only_tables, trace_name
from tests.fixtures.timeline import Thread, kernel, launch, span, write
from tests.fixtures.words import words


@pytest.fixture
def trace(tmp_path, monkeypatch):
    """``a.pb`` in the current directory."""
    monkeypatch.chdir(tmp_path)
    return read(write(Path("a.pb"), *gpu_traces.training()))


def titles(text: str) -> list[str]:
    return re.findall(r"^-*([A-Z]\w*(?: \w+)* Summary)(?: - .*?)?-*$", text, re.MULTILINE)


def test_a_file_prints_what_the_block_switches_on_by_default(trace, cli):
    views = ProfilerConfig().views()
    assert set(views) == set(summary.DEFAULT_VIEWS)
    assert cli.quiet("summary", "a.pb") == (
        f"rank 0 (a.pb), window 0, steps 5 to 7\n\n{render(Profile(trace), views, TableOptions())}"
    )


def test_options_shape_the_tables(trace, cli):
    text = cli.quiet(
        "summary",
        "a.pb",
        *words("--views op,udf --sorted-by cpu_min --thread-sep"),
        *words("--time-unit us --no-op-detail --row-limit 2"),
    )
    profile = Profile(trace, SummaryOptions("cpu_min", thread_sep=True))
    layout = TableOptions("us", op_detail=False, row_limit=2)
    assert text.partition("\n\n")[2] == render(profile, ["op", "udf"], layout)
    assert "more operators: row_limit is 2" in text

    text = cli.quiet("summary", "a.pb", "--views", "kernel,op", "--row-limit", "none")
    assert text.partition("\n\n")[2] == render(
        Profile(trace), ["op", "kernel"], TableOptions(row_limit=None)
    )


def rendered(options: TableOptions, profile: Profile) -> str:
    return render(profile, ["model", "dist", "op"], options)


def test_a_run_prints_what_its_config_says(tmp_path, cli):
    run = make_run(
        tmp_path,
        {0: 1},
        summary={"overview": False, "kernel": False, "dist": True},
        time_unit="us",
        sorted_by="cpu_avg",
        op_detail=False,
        thread_sep=True,
        row_limit=3,
    )
    profile = Profile(read(run / trace_name(0).raw), SummaryOptions("cpu_avg", thread_sep=True))
    text = cli.quiet("summary", run)
    assert text == (
        "rank 0 (dp0 pp0 sharding0 mp0), window 0, steps 0 to 2\n\n"
        + render(profile, ["model", "dist", "op"], TableOptions("us", op_detail=False, row_limit=3))
    )
    finished = cli("finish", run).out
    # Of a table in a job's output, the other rows are elsewhere.
    where = f"all: ppprof summary {run} --row-limit none, or summary/*.json"
    options = TableOptions("us", op_detail=False, row_limit=3, where=where)
    assert "more operators: row_limit is 3; all: ppprof summary" in rendered(options, profile)
    assert finished.partition("\n\n")[2] == rendered(options, profile)


def test_the_command_line_wins_over_the_config(tmp_path, cli):
    run = make_run(tmp_path, {0: 1}, detailed=True, time_unit="us", thread_sep=True, row_limit=3)
    text = cli.quiet(
        "summary",
        run,
        "--views",
        "op",
        "--time-unit",
        "ms",
        "--no-thread-sep",
        "--row-limit",
        "none",
    )
    profile = Profile(read(run / trace_name(0).raw))
    assert text.partition("\n\n")[2] == render(profile, ["op"], TableOptions(row_limit=None))


def test_all_views(trace, cli):
    assert set(titles(cli.quiet("summary", "a.pb", "--views", "all"))) == {
        "Device Summary",
        "Overview Summary",
        "Model Summary",
        "Distribution Summary",
        "Operator Summary",
        "Kernel Summary",
        "Memory Manipulation Summary",
        "UserDefined Summary",
        "Memory Summary",
    }


def test_a_table_without_rows_is_said(tmp_path, cli):
    path = write(tmp_path / "a.pb", *gpu_traces.no_step())
    text = cli.quiet("summary", path, "--views", "model,op,mem")
    assert titles(text) == ["Operator Summary"]
    assert text.endswith(
        "\nmodel: at most one of steps, Dataloader, Forward, Backward and Optimization in this trace\n"
        "mem: no memory events in this trace; Profiler.profile_memory: True records them\n\n"
    )


def test_ranks_are_those_that_the_config_prints(tmp_path, cli):
    run = make_run(tmp_path, {0: 1, 1: 2, 2: 1}, print_ranks={"dp": 1})
    views = ["--views", "model"]
    out, err = cli("summary", run, *views)
    assert re.findall(r"rank \d .*, window \d", out) == [
        "rank 1 (dp1 pp0 sharding0 mp0), window 0",
        "rank 1 (dp1 pp0 sharding0 mp0), window 1",
    ]
    assert err == f"{run}: not shown: ranks 0, 2; --rank R or --rank all shows them\n"
    assert "rank 2 (" in cli.quiet("summary", run, "--rank", 2, *views)
    assert cli.quiet("summary", run, "--rank", "all", *views).count("Model Summary") == 4
    text = cli.quiet("summary", run, "--rank", "1", "--window", "1", *views)
    assert text.startswith("rank 1 (dp1 pp0 sharding0 mp0), window 1, steps 10 to 12\n")
    assert text.count("Model Summary") == 1


def test_steps_leave_windows_out(tmp_path, cli):
    run = make_run(tmp_path, {0: 2})
    out, err = cli("summary", run, "--steps", "11:", "--views", "model")
    assert out.startswith("rank 0 (dp0 pp0 sharding0 mp0), window 1, steps 11 to 12\n")
    assert out.count("Model Summary") == 1
    assert err == f"{run / trace_name(0).raw}: no step of 11:; it has steps 0-2\n"


def test_the_newest_run_is_named(tmp_path, cli):
    make_run(tmp_path, {0: 1})
    run = make_run(tmp_path, {0: 1})
    assert cli("summary", tmp_path).err == f"{tmp_path}: the newest run is {run}\n"


def test_directories_of_one_run_print_as_one(tmp_path, cli):
    left = [make_run(tmp_path / f"node{n}", {n: 1}, "a") for n in (0, 1)]
    other = make_run(tmp_path / "other/log", {0: 1}, "b")
    views = ["--views", "model", "--rank", "all"]
    ranks = ["rank 0 (dp0 pp0 sharding0 mp0)", "rank 1 (dp1 pp0 sharding0 mp0)"]
    assert re.findall(r"(.*), window 0", cli.quiet("summary", *left, *views)) == ranks
    assert re.findall(r"(.*), window 0", cli.quiet("summary", left[0], other, left[1], *views)) == [
        *(f"{left[0]}, {left[1]}: {rank}" for rank in ranks),
        f"{other}: {ranks[0]}",
    ]
    other.rename(tmp_path.parent / f"{tmp_path.name}_other")
    out, err = cli("summary", tmp_path, *views)
    assert re.findall(r"(.*), window 0", out) == ranks
    assert err == f"{tmp_path}: the newest run is {left[0]}, {left[1]}\n"


def test_ranks_of_which_nothing_is_there_are_named(tmp_path, cli, capsys):
    whole = make_run(tmp_path, dict.fromkeys(range(5), 1), ranks="0-3")
    for rank in (2, 3, 4):
        (whole / trace_name(rank).raw).unlink()
    for rank in ([], ["--rank", "all"]):
        assert (
            f"{whole}: no trace of ranks 2-3; if other nodes wrote them, give their directories "
            "too\n"
        ) in cli("summary", whole, "--views", "model", *rank).err
    cli.quiet("summary", whole, "--views", "model", "--rank", 1)


def test_several_paths_one_after_the_other(trace, cli):
    write(Path("b.pb"), *gpu_traces.one_step())
    Path("broken.pb").write_bytes(b"\x0f" * 9)
    out, err = cli("summary", "a.pb", "broken.pb", "nowhere", "b.pb", "--views", "model")
    assert re.findall(r".*, window .*", out) == [
        "a.pb: rank 0 (a.pb), window 0, steps 5 to 7",
        "b.pb: rank 0 (b.pb), window 0, steps 0 to 0",
    ]
    assert [line.partition(": ")[0] for line in err.splitlines()] == ["broken.pb", "nowhere"]


@pytest.mark.parametrize("fmt", ["table", "json", "csv", "md"])
def test_nothing_usable_is_exit_code_3(fmt, trace, cli):
    Path("empty.pb").touch()
    arguments = ["empty.pb", "nowhere", "--format", fmt, "--views", "op", "-o", "out"]
    out, err = cli("summary", *arguments, code=3)
    assert out == ""
    assert err == (
        "empty.pb: empty, not a trace; use a file whose writer has finished\n"
        "nowhere: No such file or directory\n"
    )
    assert not Path("out").exists()


def test_a_rank_that_is_nowhere_is_bad_usage(trace, cli):
    assert cli("summary", "a.pb", "--rank", "5", code=2) == (
        "",
        'a.pb: ranks "5": expected 0 to 0\n',
    )


def test_what_was_lost_is_said(tmp_path, cli):
    from tests.fixtures.timeline import to_proto

    trees = to_proto(gpu_traces.one_step())
    trees.thread_trees[0].host_nodes[-1].parentid = 99
    path = tmp_path / "a.pb"
    path.write_bytes(trees.SerializeToString())
    assert cli("summary", path).err == (
        f"{path}: partly read: skipped 1 host event not connected to the root, "
        "1 memory event not connected to the root\n"
    )


def test_json_is_a_list_of_windows(tmp_path, cli):
    run = make_run(tmp_path, {0: 1, 1: 1})
    arguments = ["--format", "json", "--rank", "all", "--views", "model,mem", "--sorted-by", "auto"]
    windows = json.loads(cli("summary", run, *arguments).out)

    profile = Profile(read(run / trace_name(1).raw))
    assert windows[1] == {
        "schema_version": 1,
        "file": str(run / trace_name(1).raw),
        "rank": 1,
        "coordinate": "dp1_pp0_sharding0_mp0",
        "window": 0,
        "steps": [0, 1, 2],
        "sorted_by": "gpu_total",
        "lost": {},
        "tables": {view: summarize(profile, view).rows(named=True) for view in ("model", "mem")},
    }
    assert [window["rank"] for window in windows] == [0, 1]


def test_csv_is_one_table(tmp_path, cli):
    run = make_run(tmp_path, {0: 1, 1: 1})
    text = cli.quiet("summary", run, "--format", "csv", "--rank", "all", "--views", "op")
    rows = list(csv.DictReader(io.StringIO(text)))
    tables = [summarize(Profile(read(run / trace_name(rank).raw)), "op") for rank in (0, 1)]
    assert list(rows[0]) == ["path", "rank", "window", *tables[0].columns]
    assert len(rows) == sum(table.height for table in tables)
    last = tables[1].row(-1, named=True)
    assert rows[-1] == {
        "path": str(run),
        "rank": "1",
        "window": "0",
        **{key: "" if value is None else str(value) for key, value in last.items()},
    }


def test_csv_has_one_header_where_one_run_lists_spans_by_thread(tmp_path, cli):
    runs = [
        make_run(tmp_path / "merged", {0: 1}),
        make_run(tmp_path / "by_thread", {0: 1}, thread_sep=True),
    ]
    text = cli.quiet("summary", *runs, "--format", "csv", "--views", "udf")
    rows = list(csv.DictReader(io.StringIO(text)))
    spans = [(row["path"], row["thread"], row["calls"]) for row in rows if row["name"] == "collate"]
    assert spans == [(str(runs[0]), "", "3"), (str(runs[1]), str(gpu_traces.WORKER), "3")]


def test_steps_without_all_device_events_are_said_to_be_left_out(tmp_path, cli):
    """Step 1 of three steps lost its only kernel."""
    steps = []
    for number in range(3):
        at = 1000 * number
        kernels = [] if number == 1 else [kernel("k", at + 10, at + 50)]
        inside = launch(at + 1, at + 5, *kernels)
        steps.append(span("ProfileStep", f"ProfileStep#{number}", at, at + 900, inside))
    path = write(tmp_path / "a.pb", Thread(1, "main", tuple(steps)))
    err = cli("summary", path, "--steps", "1", code=2).err
    assert err.splitlines()[-1] == (
        f"{path}: no step of 1:2; it has steps 0, 2; left out since device events are missing: step 1"
    )


@pytest.mark.parametrize("view", ["python", "copies"])
def test_the_row_limit_has_an_effect_where_rows_are_cut(view, tmp_path, cli):
    run = make_run(tmp_path, {0: 1})
    assert "no effect" not in cli("summary", run, "--views", view, "--row-limit", 1).err


def test_markdown_is_what_github_renders(trace, cli):
    text = cli.quiet("summary", "a.pb", "--format", "md", "--views", "dist,kernel")
    lines = text.splitlines()
    assert lines[:8] == [
        "## rank 0 (a.pb), window 0, steps 5 to 7",
        "",
        "### dist",
        "",
        "| name                    |   time_ns |   ratio | computed_by   |",
        "|-------------------------|-----------|---------|---------------|",
        "| `ProfileStep`           |  28500000 |  1.0000 |               |",
        "| `Communication`         |  11700000 |  0.4105 |               |",
    ]
    names = [re.split(r"(?<!\\)\|", line)[1].strip() for line in lines if line.startswith("| `")]
    assert f"`{gpu_traces.GEMM}`" in names
    assert all(line.count("|") - line.count("\\|") in (0, 5, 8) for line in lines)


def test_output_goes_to_a_file_whole_and_never_over_another(trace, cli, tmp_path):
    text = cli.quiet("summary", "a.pb")
    assert cli.quiet("summary", "a.pb", "-o", "out.txt") == ""
    assert Path("out.txt").read_text() == text
    assert (
        cli("summary", "a.pb", "-o", "out.txt", "--views", "model", code=2).err
        == "-o out.txt: exists; --force replaces it\n"
    )
    assert Path("out.txt").read_text() == text
    assert cli.quiet("summary", "a.pb", "-o", "out.txt", "--views", "model", "--force") == ""
    assert titles(Path("out.txt").read_text()) == ["Model Summary"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.pb", "out.txt"]


def test_what_cannot_be_written_is_said(trace, cli):
    if os.geteuid() == 0:
        where = "/proc/out"
    else:
        Path("locked").mkdir(mode=0o500)
        where = "locked/out"
    assert cli("summary", "a.pb", "-o", where, code=2).err.startswith(f"-o {where}: ")


def test_output_replaces_no_device(trace, cli):
    os.mkfifo("pipe")
    err = cli("summary", "a.pb", "-o", "pipe", "--force", code=2).err
    assert err == "-o pipe: a pipe or a device; expected a file\n"
    assert Path("pipe").is_fifo()
    for place in ("/dev/stdout", "/dev/null"):  # not through the command, which might replace them
        problem = problem_of_output(Path(place), (), force=True)
        assert problem == "a pipe or a device; expected a file"
        assert problem_of_output(Path(place), (), force=True, replaces=False) is None


def test_stacks_go_into_a_pipe(trace):
    """As in ``ppprof convert FILE /dev/stdout --to collapsed --force | flamegraph.pl``: nothing is replaced."""
    command = [sys.executable, "-m", "ppprof", "convert", "a.pb", "/dev/stdout"]
    done = subprocess.run(
        [*command, "--to", "collapsed", "--force"], capture_output=True, text=True, check=False
    )
    assert "a pipe" not in done.stderr, done.stderr


def test_only_tables_left_are_printed(tmp_path, cli):
    run = only_tables(tmp_path)
    text = cli.quiet("summary", run)
    assert text.startswith("rank 0 (dp0 pp0 sharding0 mp0), window 0, steps 0 to 2\n")
    assert titles(text) == [
        "Overview Summary",
        "Model Summary",
        "Operator Summary",
        "Kernel Summary",
    ]
    assert (
        "only tables are left of this window, no trace"
        in cli("summary", run, "--steps", "1", code=3).err
    )
    assert "no trace: no efficiency" in cli("summary", run, "--views", "op,efficiency", code=3).err


def test_a_view_of_the_config_that_needs_the_trace_is_left_out(tmp_path, cli):
    """``with_flops`` adds the view layer, which no capture saves."""
    plain, with_layer = (only_tables(tmp_path / str(n), with_flops=n == 1) for n in range(2))
    out, err = cli("summary", with_layer)
    assert out == cli.quiet("summary", plain)
    assert err.count(f"{with_layer}: only tables are left, no trace: no layer") == 1
    assert "no trace: no layer" in cli("summary", with_layer, "--views", "layer", code=3).err


def test_efficiency_in_all_formats(trace, cli):
    text = cli.quiet("summary", "a.pb", "--views", "efficiency")
    assert titles(text) == ["Efficiency Summary"]
    assert re.search(r"^matmul +\[4,128,256\] \[256,1024\] +bfloat16 +6 ", text, re.MULTILINE)
    (window,) = json.loads(
        cli.quiet("summary", "a.pb", "--views", "efficiency", "--format", "json")
    )
    matmul, unknown = window["tables"]["efficiency"]
    assert matmul["flops"] == 2 * (4 * 128) * 256 * 1024
    assert unknown["name"] is None
    header, *lines = cli.quiet(
        "summary", "a.pb", "--views", "efficiency", "--format", "csv"
    ).split()
    assert header.startswith("path,rank,window,name,shapes,dtype,calls,time_ns,flops,bytes")
    assert len(lines) >= 2
    text = cli.quiet("summary", "a.pb", "--views", "efficiency", "--format", "md")
    assert "\n| `matmul` | [4,128,256] [256,1024] | bfloat16 |" in text
    assert "\n|          |     " in text


def test_an_option_without_effect_is_reported(trace, cli):
    arguments = ["--views", "overview", "--sorted-by", "cpu_max", "--no-op-detail"]
    assert cli("summary", "a.pb", *arguments).err == (
        "--sorted-by: has no effect on overview; it changes op, kernel, udf, shape, layer\n"
        "--op-detail: has no effect on overview; it changes op\n"
    )


def test_every_problem_of_the_command_line_at_once(trace, cli):
    arguments = words(
        "--views op,ops --window -1 --steps 5:5 --sorted-by gpu",
        "--time-unit h --row-limit 0 --no-op-detail --format csv --force",
    )
    out, err = cli("summary", "a.pb", *arguments, code=2)
    assert out == ""
    assert err.splitlines() == [
        "--views: 'ops': expected all, or some of " + ", ".join(ALL_VIEWS),
        "--window: '-1': expected a whole number from 0",
        "--steps: steps '5:5': 5 is not after 5; no step is in it",
        "--sorted-by: sorted_by 'gpu': expected auto or one of cpu_total, cpu_avg, cpu_max, "
        "cpu_min, gpu_total, gpu_avg, gpu_max, gpu_min",
        "--time-unit: time_unit 'h': expected one of s, ms, us, ns",
        "--row-limit: '0': expected a whole number from 1, or none",
        "--time-unit: has no effect on csv, which holds every row, in nanoseconds",
        "--op-detail: has no effect on csv, which holds every row, in nanoseconds",
        "--row-limit: has no effect on csv, which holds every row, in nanoseconds",
        "--format csv: one table: name it with --views",
        "--force: has no effect without -o FILE",
    ]


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (".", "-o .: a directory; expected a file"),
        ("no/where", "-o no/where: no is not a directory"),
        ("a.pb", "-o a.pb: this command reads it; write to another file"),
    ],
)
def test_where_output_cannot_go(output, message, trace, cli):
    before = Path("a.pb").read_bytes()
    assert cli("summary", "a.pb", "-o", output, "--force", code=2).err == message + "\n"
    assert Path("a.pb").read_bytes() == before


def test_a_config_of_another_version_is_left_aside(tmp_path, cli):
    run = make_run(tmp_path, {0: 1})
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["profiler"]["newer_key"] = 1
    (run / "manifest.json").write_text(json.dumps(manifest))
    out, err = cli("summary", run)
    assert out.count("Model Summary") == 1
    assert err.startswith(f"{run}: its Profiler block is ignored:\n")
    assert "newer_key" in err


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def slow_read(path, *, progress=None, **_):
    """As a reader of a long file: in pieces."""
    if progress:
        for done in (0, 400, 1000):
            progress(done, 1000)
    return read_ranks(path)


@pytest.mark.parametrize("stderr", [Terminal(), io.StringIO()], ids=["terminal", "pipe"])
def test_a_bar_on_a_terminal_only(stderr, trace, monkeypatch, cli):
    bars = []

    class Bar(tqdm.tqdm):
        def __init__(self, **settings):
            super().__init__(**settings)
            bars.append(self)

    monkeypatch.setattr(tqdm, "tqdm", Bar)
    monkeypatch.setattr("ppprof.run.traces.read_ranks", slow_read)
    monkeypatch.setattr("sys.stderr", stderr)
    cli("summary", "a.pb")
    assert [(bar.desc, bar.n, bar.total) for bar in bars] == [
        ("a.pb", 1000, 1000)
    ] * stderr.isatty()


def process(*arguments: object, **settings) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "ppprof", "summary", *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, **{**pipes, **settings})


def test_as_a_process(trace, cli):
    done = process("a.pb").communicate(timeout=60)
    assert done == (cli.quiet("summary", "a.pb"), "")


def test_a_closed_pipe_ends_it_quietly(trace):
    with process(*["a.pb"] * 40, "--views", "all") as running:
        assert running.stdout.readline().startswith("a.pb: rank 0")
        running.stdout.close()
        assert running.stderr.read() == ""
        assert running.wait(timeout=60) == 0


def ended(redirections: str) -> tuple[int, str, str]:
    """Return the exit code, stdout and stderr of a command that a shell started so."""
    command = f'"$0" -m ppprof summary a.pb {redirections}'
    done = subprocess.run(
        ["sh", "-c", command, sys.executable],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_a_closed_stdout_or_stderr_changes_nothing_else(trace, cli):
    assert ended(">&-") == (0, "", "")
    assert ended("<&- >&- 2>&-") == (0, "", "")
    assert ended("2>&-") == (0, cli.quiet("summary", "a.pb"), "")


def test_a_full_disk_behind_stdout_is_a_message(trace):
    reason = "stdout: cannot write the output: No space left on device\n"
    assert ended(">/dev/full") == (2, "", reason)
    assert ended(">/dev/full 2>/dev/full") == (2, "", "")


def test_control_c_ends_it_quietly(trace, monkeypatch, cli):
    def interrupted(*_, **__):
        raise KeyboardInterrupt  # as Python's handler of SIGINT does

    monkeypatch.setattr("ppprof.run.traces.read_ranks", interrupted)
    assert cli("summary", "a.pb", code=130) == ("", "")


def test_a_name_that_the_terminal_cannot_show(tmp_path):
    path = write(tmp_path / "a.pb", *gpu_traces.odd_names())
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    out, err = process(path, env=environment).communicate(timeout=60)
    assert err == ""
    assert "\\u0442\\u0435\\u043d\\u0437\\u043e\\u0440" in out


def test_what_is_not_needed_is_not_loaded(trace):
    code = (
        "import sys; from ppprof.cli import main; main(['summary', 'a.pb']);"
        "print({'omegaconf', 'yaml', 'tqdm', 'tabulate', 'paddle'} & set(sys.modules), "
        "file=sys.stderr)"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr == "set()\n"
