"""Untrusted files: the bounds of docs/reliability.md hold.

The bytes of traces have tests of their own (trace/test_fuzz.py).
"""

from __future__ import annotations

import ast
import base64
import copy
import json
import logging
import os
import re
import subprocess
import sys
import time
import zlib
from pathlib import Path

import pytest

import ppprof
from ppprof import paths, rundir
from ppprof.capture.output import StderrHandler
from ppprof.cli import main
from ppprof.config import load_config
from ppprof.errors import ConfigError, InputError, PpprofError, UsageError
from ppprof.paths import read_bounded
from ppprof.run import diff
from ppprof.run.run import open as open_run
from ppprof.run.summary import read_tables
from ppprof.rundir.clocks import read_clocks
from ppprof.rundir.remote_calls import read_calls
from ppprof.rundir.step_times import read_step_times
from ppprof.topology import Topology
from ppprof.trace import read
from tests.fixtures import gpu_traces
from tests.fixtures.run_directories import make_run
from tests.fixtures.run_files import run_file
from tests.fixtures.tiers import one_in
from tests.fixtures.timeline import write
from tests.fixtures.words import words

PACKAGE = Path(ppprof.__file__).parent
DEEP = "[" * 200_000
NAME = "rank_{:05d}_dp0_pp0_sharding0_mp0_time_20260101T000000_000.paddle_trace.json"


ALLOWED = {  # with what is done there
    ("capture/ranks/udp.py", "socket"),  # UDP between the ranks of a job
    ("train/fleet_on_cpu.py", "socket"),  # looks for a free port for Paddle's own store
    ("selftest/trained.py", "socket"),  # looks for a free port for a launch on this machine
    ("capture/profiled_calls.py", "socket"),  # gethostname
    ("capture/recording/rpc.py", "pickle"),  # pickles functions for Paddle's rpc, as Paddle does
}
RUN = {  # the script that tools/attach.py runs on purpose
    ("integrations/script.py", "compile"),
    ("integrations/script.py", "exec"),
}
MODULES = {
    *words("pickle cPickle dill cloudpickle marshal shelve socket socketserver http xmlrpc"),
    *words("asyncio code codeop runpy"),
}
BUILTINS = {"eval", "exec", "compile", "__import__"}
CALLS = {
    *("system", "popen", "full_load", "unsafe_load", "load_all", "full_load_all", "UnsafeLoader"),
    *("FullLoader", "Loader", "listen", "create_server"),
}


class TestCode:
    """What the package's own source does not do, by its syntax."""

    @staticmethod
    def sources():
        for path in sorted(PACKAGE.rglob("*.py")):
            yield path.relative_to(PACKAGE).as_posix(), ast.parse(path.read_text("utf-8"))

    def test_modules_that_run_or_serve_are_imported_where_that_is_justified(self):
        found = set()
        for name, tree in self.sources():
            for node in ast.walk(tree):
                if isinstance(node, ast.Import):
                    modules = [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom):
                    modules = [node.module or ""]
                else:
                    continue
                tops = {module.partition(".")[0] for module in modules}
                found |= {(name, top) for top in tops & MODULES}
        assert found == ALLOWED

    def test_nothing_is_evaluated_and_yaml_is_read_safely(self):
        found = []
        for name, tree in self.sources():
            for node in ast.walk(tree):
                if isinstance(node, ast.Call):
                    called = node.func
                    word = getattr(called, "id", None) or getattr(called, "attr", "")
                    owner = getattr(getattr(called, "value", None), "id", "")
                    is_method = isinstance(called, ast.Attribute) and word in BUILTINS
                    # A network's .eval() method evaluates no text.
                    if word in BUILTINS | CALLS and not is_method and (name, word) not in RUN:
                        found.append((name, node.lineno, word))
                    if owner == "yaml" and word.startswith("load"):
                        found.append((name, node.lineno, f"yaml.{word}"))
                    found += [
                        (name, node.lineno, key.arg)
                        for key in node.keywords
                        if key.arg in ("shell", "allow_pickle")
                    ]
                elif isinstance(node, ast.ClassDef):
                    bases = [ast.unparse(base) for base in node.bases]
                    found += [
                        (name, node.lineno, base)
                        for base in bases
                        if base.startswith("yaml.") and base != "yaml.SafeLoader"
                    ]
        assert found == []

    def test_a_reader_opens_no_socket(self, tmp_path):
        write(tmp_path / "a.pb", *gpu_traces.training())
        code = (
            "import socket, sys\n"
            "def no(*a, **k): raise SystemExit('a socket was made')\n"
            "socket.socket.bind = socket.socket.listen = socket.socket.connect = no\n"
            "from ppprof.cli import main\n"
            "for command in (['summary'], ['ranks'], ['report', '-o', 'p.html'], ['diff', '--experiment-rank', '0']):\n"
            "    assert main([command[0], 'a.pb', *command[1:]]) == 0\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr


@pytest.fixture
def run(tmp_path) -> Path:
    """A run of two ranks with a manifest, step times and clocks."""
    return make_run(tmp_path / "log", {0: 1, 1: 1})


class TestNames:
    """Of files."""

    @pytest.mark.parametrize(
        "name",
        [
            NAME.format(10**9),
            NAME.format(0).replace("_000.", f"_{10**9}."),
            "rank_00000_..\N{DIVISION SLASH}x_time_20260101T000000_000.pb",
            "rank_٠٠٠٠٠_dp0_time_20260101T000000_000.pb",
        ],
    )
    def test_odd_names_are_nobodys(self, name):
        assert rundir.TraceName.parse(name) is None

    def test_a_name_of_the_highest_rank_costs_little(self, tmp_path, cli):
        write(
            tmp_path / NAME.format(999_999).replace(".paddle_trace.json", ".pb"),
            *gpu_traces.training(),
        )
        began = time.monotonic()
        cli("ranks", tmp_path)
        assert time.monotonic() - began < 30

    @pytest.mark.parametrize("folder", ["steps", "clocks"])
    def test_odd_names_of_lines_are_left_aside(self, tmp_path, folder):
        """ "²".isdigit() is true, and int("²") an error."""
        (tmp_path / folder).mkdir()
        for name in ("rank_².jsonl", "rank_.jsonl", f"rank_{10**30}.jsonl", "rank_00001.jsonl"):
            (tmp_path / folder / name).write_text('{"at_ns": 1, "offset_ns": 0, "error_ns": 0}\n')
        assert set(read_clocks(tmp_path)) <= {1}
        assert read_step_times(tmp_path).is_empty()

    def test_a_manifest_names_no_files(self, run):
        """Whatever it says, only what lies in the directory is read."""
        manifest = rundir.read_manifest(run)
        outside = run.parent / "outside.pb"
        write(outside, *gpu_traces.training())
        for key in ("traces", "files", "summary", "steps"):
            manifest[key] = ["../outside.pb", str(outside)]
        rundir.write_manifest(run, manifest)
        found = open_run(run)
        assert {file.parent for recording in found.recordings for file in recording.files} <= {
            run,
            run / "raw",
        }

    def test_finish_writes_into_the_run_only(self, run, cli):
        """A folder that is a link would have it write files elsewhere."""
        elsewhere = run.parent / "elsewhere"
        elsewhere.mkdir()
        for path in (run / "summary").iterdir():
            path.unlink()
        (run / "summary").rmdir()
        (run / "summary").symlink_to(elsewhere)
        assert "summary: a symlink; expected a folder of the run" in cli("finish", run, code=3).err
        assert not list(elsewhere.iterdir())

    def test_what_is_written_replaces_a_link_and_not_what_it_points_to(self, tmp_path):
        precious = tmp_path / "precious"
        precious.write_text("mine")
        (tmp_path / "out.json").symlink_to(precious)
        with paths.atomic_writer(tmp_path / "out.json") as file:
            file.write(b"{}")
        assert precious.read_text() == "mine"
        assert (tmp_path / "out.json").read_text() == "{}"


class TestSizes:
    """Of files that are held in memory whole."""

    @pytest.fixture(autouse=True)
    def small(self, monkeypatch):
        """Bounds that a test can reach."""
        for module in (
            *("rundir.manifest", "rundir.clocks", "rundir.remote_calls", "rundir.summaries"),
            "config.yaml_source",
        ):
            monkeypatch.setattr(f"ppprof.{module}._MOST_BYTES", 1 << 20)

    def test_a_file_is_never_read_beyond_its_bound(self, tmp_path):
        (tmp_path / "a").write_bytes(bytes(1 << 20))
        assert len(read_bounded(tmp_path / "a", 1 << 20)) == 1 << 20
        with pytest.raises(OSError, match=r"larger than the 0[.]5 MiB"):
            read_bounded(tmp_path / "a", 1 << 19)
        with pytest.raises(OSError, match="neither a file"):
            read_bounded(Path("/dev/zero"), 1000)

    def test_manifests(self, tmp_path):
        (tmp_path / "manifest.json").write_text(" " * (2 << 20))
        with pytest.raises(InputError, match=r"manifest.json: larger than the 1 MiB"):
            rundir.read_manifest(tmp_path)

    def test_clocks(self, tmp_path):
        (tmp_path / "clocks").mkdir()
        (tmp_path / "clocks/rank_00000.jsonl").write_text("\n" * (2 << 20))
        with pytest.raises(InputError, match=r"rank_00000.jsonl: larger than"):
            read_clocks(tmp_path)

    def test_tables(self, tmp_path):
        (tmp_path / "a.json").write_text(" " * (2 << 20))
        with pytest.raises(InputError, match=r"a.json: larger than"):
            read_tables(tmp_path / "a.json")

    def test_calls(self, tmp_path):
        (tmp_path / "a.json").write_text(" " * (2 << 20))
        assert read_calls(run_file(tmp_path)) == ([], 1)

    def test_configs(self, tmp_path):
        (tmp_path / "a.yaml").write_text("# \n" * (1 << 20))
        with pytest.raises(ConfigError, match=r"a.yaml: larger than"):
            load_config(tmp_path / "a.yaml")

    @pytest.mark.parametrize(
        "line", one_in(3, ["{}", '{"step": [', '{"step":1e999}', '{"a":' + "[" * 9999])
    )
    def test_step_times_that_are_none(self, tmp_path, line):
        (tmp_path / "steps").mkdir()
        text = f"{line}\n" * ((4 << 20) // len(line)) + '{"step": "x"}\n'
        (tmp_path / "steps/rank_00000.jsonl").write_text(text)
        began = time.monotonic()
        assert read_step_times(tmp_path).is_empty()
        assert time.monotonic() - began < 60

    @pytest.mark.parametrize("where", ["trace", "manifest", "steps", "clocks", "config"])
    def test_a_pipe_is_no_file(self, tmp_path, where):
        """Opening a pipe without a writer would block forever."""
        names = {"trace": "a.json", "manifest": "manifest.json", "config": "a.yaml"}
        path = tmp_path / names.get(where, f"{where}/rank_00000.jsonl")
        path.parent.mkdir(exist_ok=True)
        os.mkfifo(path)
        readers = {
            "trace": lambda: read(path),
            "manifest": lambda: rundir.read_manifest(tmp_path),
            "steps": lambda: read_step_times(tmp_path),
            "clocks": lambda: read_clocks(tmp_path),
            "config": lambda: load_config(path),
        }
        with pytest.raises(PpprofError, match=r"neither a file nor a directory|not a regular file"):
            readers[where]()


class TestDepth:
    """JSON and YAML that would use up the stack."""

    def test_json(self, tmp_path):
        (tmp_path / "manifest.json").write_text(DEEP)
        with pytest.raises(InputError, match="not a manifest"):
            rundir.read_manifest(tmp_path)
        (tmp_path / "a.json").write_text(DEEP)
        assert read_calls(run_file(tmp_path)) == ([], 2)
        with pytest.raises(InputError, match="not the tables of a window"):
            read_tables(tmp_path / "a.json")
        (tmp_path / "clocks").mkdir()
        (tmp_path / "clocks/rank_00000.jsonl").write_text(DEEP)
        assert read_clocks(tmp_path) == {}

    def test_yaml(self, tmp_path):
        (tmp_path / "a.yaml").write_text("a: " + DEEP[:10_000])
        with pytest.raises(ConfigError, match="nested too deeply"):
            load_config(tmp_path / "a.yaml")
        with pytest.raises(InputError, match="nested too deeply"):
            diff._read_names(tmp_path / "a.yaml")


LAUGHS = "a0: &a0 [x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
)
MERGED_LAUGHS = "a0: &a0 {k: 1}\n" + "".join(
    f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}\n" for n in range(1, 12)
)


class TestYaml:
    """Configs; `tests/config` has their dialect."""

    @pytest.mark.parametrize("text", [LAUGHS, MERGED_LAUGHS], ids=["lists", "merges"])
    def test_aliases_that_stand_for_a_billion_values(self, tmp_path, text):
        (tmp_path / "a.yaml").write_text(text)
        began = time.monotonic()
        with pytest.raises(ConfigError, match="more than 10000 values with aliases expanded"):
            load_config(tmp_path / "a.yaml")
        with pytest.raises(InputError, match="more than 10000 values"):
            diff._read_names(tmp_path / "a.yaml")
        assert time.monotonic() - began < 10

    def test_aliases_in_an_override(self, tmp_path):
        (tmp_path / "a.yaml").write_text("Global: {seed: 1}")
        value = "[" + ", ".join(["&a [1]"] + ["[*a]"] * 6000) + "]"
        loaded = load_config(tmp_path / "a.yaml", [f"Other.x={value}"])
        assert loaded.to_mapping()["Other"]["x"] == value  # text: no YAML of ours

    def test_a_chain_of_files_has_an_end(self, tmp_path):
        for number in range(150):
            (tmp_path / f"{number}.yaml").write_text(f"_base_: {number + 1}.yaml\n")
        with pytest.raises(ConfigError, match="more than 100 files inherit from one another"):
            load_config(tmp_path / "0.yaml")

    def test_a_base_is_a_file(self, tmp_path):
        (tmp_path / "a.yaml").write_text("_base_: /dev/zero\n")
        with pytest.raises(ConfigError, match=r"neither a file nor a directory|not a regular file"):
            load_config(tmp_path / "a.yaml")

    @pytest.mark.parametrize(
        "tag", ["!!python/object/apply:os.system ['true']", "!!python/name:os.x"]
    )
    def test_no_tag_makes_an_object(self, tmp_path, tag):
        (tmp_path / "a.yaml").write_text(f"Global: {tag}\n")
        with pytest.raises(ConfigError):
            load_config(tmp_path / "a.yaml")
        with pytest.raises(InputError):
            diff._read_names(tmp_path / "a.yaml")


ODD = [None, -1, 10**30, 1.5, "\x1b[2J", [], {"a": {}}, [None], [{"rank": []}]]


class TestManifests:
    """Values of any kind where others are expected: what they say is left aside, or an error."""

    @pytest.mark.parametrize(
        "key",
        words(
            "run_id started world_size axes axes.order axes.degrees groups ranks",
            "versions profiler profiler.ranks profiler.scheduler config schema_version",
        ),
    )
    @pytest.mark.parametrize("is_one", [True, pytest.param(False, marks=pytest.mark.all)])
    def test_odd_values(self, run, key, capsys, is_one):
        sound = rundir.read_manifest(run)
        name, _, inner = key.partition(".")
        commands = (
            ["summary", "--rank", "all", "--views", "overview"],
            ["ranks"],
            ["diff", "--experiment-rank", "0"],
        )
        number = len(key)  # another value and command for each key
        values = [ODD[number % len(ODD)]] if is_one else ODD
        for value in values:
            manifest = copy.deepcopy(sound)
            if inner:
                manifest.setdefault(name, {})[inner] = value
            else:
                manifest[name] = value
            (run / "manifest.json").write_text(json.dumps(manifest))
            for command in [commands[number % len(commands)]] if is_one else commands:
                assert main([command[0], str(run), *command[1:]]) in (0, 2, 3), (value, command)
        assert "\x1b" not in "".join(capsys.readouterr())

    def test_a_page_of_an_odd_run(self, run, cli):
        manifest = dict.fromkeys(rundir.read_manifest(run), "</script><b>\x1b[2J")
        (run / "manifest.json").write_text(json.dumps({**manifest, "schema_version": 1}))
        page = run.parent / "page.html"
        cli("report", run, "-o", page)
        assert "</script><b>" not in page.read_text("utf-8")

    def test_a_grid_of_many_ranks_is_not_counted_out(self, run, cli):
        manifest = rundir.read_manifest(run)
        manifest["axes"] = {"order": ["dp", "pp", "sharding", "sep", "mp"], "degrees": [10**9] * 5}
        (run / "manifest.json").write_text(json.dumps(manifest))
        assert open_run(run).topology is None
        cli("summary", run, "--rank", "all")

    def test_a_grid_has_whole_degrees(self):
        for degree in (2.5, "2", None):
            with pytest.raises(UsageError, match="expected whole numbers, at least 1"):
                Topology((degree, 1, 1, 1, 1))
        with pytest.raises(UsageError, match="more than 1000000 ranks"):
            Topology.of(dp=10**6, mp=2)


EVIL = "evil\x1b]0;owned\x07\x1b[2J\x9b1m\u202e\u200b\u00adname\r\nROOT: ok"
UNSEEN = "\x00-\x08\x0b-\x0c\x0e-\x1f\x7f-\x9f\xad\u200b\u202e"


def _part(packed, data, name):
    """Return the text of a packed part of the first rank's timeline."""
    number = data["timeline"]["ranks"][0][name]
    return packed.partition(f'id="part-{number}">')[2].partition("</script>")[0]


class TestTerminals:
    """Names are shown, never obeyed."""

    @pytest.fixture
    def evil(self, tmp_path) -> Path:
        """A trace in which a span is called so, in a file that is as well."""
        trace = {
            "schemaVersion": "1.0.2",
            "traceEvents": [
                {
                    "name": f"{name}[1.0 ms]",
                    "pid": 1,
                    "tid": "1(Python)",
                    "ts": start,
                    "dur": dur,
                    "ph": "X",
                    "cat": kind,
                    "args": {"start_time": f"{start}.0 us", "end_time": f"{start + dur}.0 us"},
                }
                for name, kind, start, dur in [
                    ("ProfileStep#0", "ProfileStep", 0, 1000),
                    (EVIL, "Operator", 10, 100),
                    (EVIL, "UserDefined", 200, 100),
                ]
            ],
        }
        path = tmp_path / "a\x1b[2Jb.json"
        path.write_text(json.dumps(trace))
        return path

    @pytest.mark.parametrize("command", ["summary", "ranks", "diff"])
    def test_tables(self, evil, command, cli):
        others = ["--experiment-rank", "0"] if command == "diff" else []
        views = ["--views", "op,udf"] if command == "summary" else []
        out, err = cli(command, evil, *others, *views)
        assert not re.search(f"[\r{UNSEEN}]", out + err)
        if command == "summary":
            assert r"evil\x1b]0;owned\x07\x1b[2J\x9b1m\u202e\u200b\xadname\r" in out

    @pytest.mark.parametrize("format", one_in(2, ["table", "json", "md", "csv"]))
    def test_every_format_on_a_terminal(self, evil, format):
        import pty

        primary, secondary = pty.openpty()
        command = ["summary", str(evil), "--format", format, "--views", "op"]
        done = subprocess.Popen(
            [sys.executable, "-m", "ppprof", *command], stdout=secondary, stderr=secondary
        )
        os.close(secondary)
        shown = b""
        while True:
            try:
                shown += os.read(primary, 1 << 16)
            except OSError:  # the other side has gone
                break
        os.close(primary)
        assert done.wait() == 0, shown
        text = re.sub("\x1b\\[1m(.*?)\x1b\\[0m", r"\1", shown.decode())  # our titles are bold
        assert "evil" in text
        assert not re.search(f"[{UNSEEN}]", text)

    def test_a_page(self, evil, tmp_path, cli):
        cli("report", evil, "-o", tmp_path / "page.html")
        page = (tmp_path / "page.html").read_text()
        page, data = page.partition("</style>")[2].split('<script type="application/json"')
        assert r"evil\x1b]0;owned" in page
        assert not re.search(f"[\r{UNSEEN}]", page)
        data, _, packed = data.partition(">")[2].partition("</script>")
        loaded = json.loads(data)
        names = zlib.decompress(base64.b64decode(_part(packed, loaded, "signatures"))).decode()
        assert r"evil\\x1b]0;owned" in names
        for text in (json.dumps(loaded, ensure_ascii=False), names):
            assert not re.search(f"[\r{UNSEEN}]", text)

    def test_a_file_of_tables(self, evil, tmp_path, cli):
        cli("summary", evil, "--views", "udf", "-o", tmp_path / "o")
        assert "\x1b" not in (tmp_path / "o").read_text()

    def test_data_keep_what_they_are(self, evil, tmp_path, cli):
        cli("summary", evil, "--format", "csv", "--views", "op", "-o", tmp_path / "o")
        assert EVIL.partition("\r")[0] in (tmp_path / "o").read_text()

    def test_messages(self, evil, capsys, cli):
        evil.write_text("\x1b[2J")
        err = cli("summary", evil, code=3).err
        StderrHandler().handle(logging.makeLogRecord({"msg": EVIL}))
        assert "\x1b" not in err + capsys.readouterr().err
