"""The compiled core: it is used when it should be, and returns what a regular expression finds."""

from __future__ import annotations

import gzip
import os
import random
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppprof.cli import versions
from ppprof.errors import UsageError
from ppprof.trace import read, write_paddle_json
from ppprof.trace.fastpath import core, fixed_layout
from ppprof.trace.fastpath.fixed_layout import MISSING, TEXTS, Scanned
from ppprof.trace.fastpath.layouts import DIALECTS, Dialect, EventPattern, dialect_of
from ppprof.trace.fastpath.native.scanner import Scanner, _program_of
from ppprof.trace.fastpath.native.store import Control
from ppprof.trace.json.recovery import start_of_events
from ppprof.trace.kineto.compiled_reader import FORMS
from ppprof.trace.source import MARGIN, Block, TraceStream
from tests.fixtures import gpu_traces
from tests.fixtures.hostile_bytes import LONG, NASTY, mutated
from tests.fixtures.timeline import write
from tests.trace.fastpath.patterns import expected_of
from tools.build_core import BuildError, build

FUZZ = Path(__file__).with_name("fuzz_scan.c")
FUZZ_EVENTS = Path(__file__).with_name("fuzz_events.c")
KINETO = Path(__file__).parents[2] / "fixtures" / "kineto" / "gpu_ddp.json"
RUNS = Path(__file__).parents[2] / "fixtures" / "runs"
native = pytest.mark.skipif(
    core.load(core.FOLDER)[0] is None,
    reason="needs the compiled core: run `python tools/build_core.py`",
)


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A copy of the sources and of the library, which the chooser looks at."""
    copy = tmp_path / "native"
    shutil.copytree(core.FOLDER, copy)
    monkeypatch.setattr(core, "FOLDER", copy)
    monkeypatch.delenv(core.VARIABLE, raising=False)
    return copy


class TestChoice:
    """Which core is used, and the sentence that says why."""

    @native
    def test_the_compiled_core_is_used_if_it_is_there(self, folder, monkeypatch):
        assert core.describe() == "native (compiled from these sources)"
        monkeypatch.setenv(core.VARIABLE, "native")
        assert core.describe() == "native (PPPROF_CORE=native)"

    @native
    def test_it_is_not_used_on_request(self, folder, monkeypatch):
        monkeypatch.setenv(core.VARIABLE, "python")
        assert core.describe() == "python (PPPROF_CORE=python)"
        assert core.library() is None

    @pytest.mark.parametrize(
        ("change", "problem"),
        [
            (
                lambda folder: (folder / "_core.so").unlink(),
                "there is no compiled library _core.so",
            ),
            (
                lambda folder: (folder / "_core.so").write_bytes(100 * b"x"),
                "_core.so cannot be loaded: ",
            ),
            (
                lambda folder: (folder / "columns.h").write_text("/* newer */"),
                "_core.so was compiled from other sources than those beside it",
            ),
        ],
        ids=["missing", "damaged", "other source"],
    )
    @native
    def test_it_is_not_used_if_the_library_cannot_be(self, folder, change, problem, monkeypatch):
        change(folder)
        assert core.describe().startswith(f"python ({problem}")
        assert f"\ncore python ({problem}" in versions()
        assert core.library() is None
        monkeypatch.setenv(core.VARIABLE, "native")
        with pytest.raises(UsageError) as raised:
            core.library()
        assert str(raised.value).startswith(f"PPPROF_CORE=native: {problem}")
        assert "tools/build_core.py" in str(raised.value)
        assert core.describe() == f"none ({raised.value})"

    def test_another_value_is_an_error(self, monkeypatch):
        monkeypatch.setenv(core.VARIABLE, "fast")
        message = "PPPROF_CORE=fast: expected native or python, or no value"
        with pytest.raises(UsageError, match=message):
            core.choose()
        assert core.describe() == f"none ({message})"

    def test_a_wrong_value_ends_a_command_with_a_message(self, tmp_path, monkeypatch, cli):

        write_paddle_json(
            read(write(tmp_path / "a.pb", *gpu_traces.training())), tmp_path / "a.json"
        )
        monkeypatch.setenv(core.VARIABLE, "fast")
        assert (
            "PPPROF_CORE=fast: expected native or python"
            in cli("summary", tmp_path / "a.json", code=2).err
        )


def block_of(data: bytes, first: int = 0) -> Block:
    return Block(bytearray(MARGIN) + data + bytes(MARGIN), len(data), first, True)


def rows(scanned: Scanned) -> list[tuple]:
    """All events with the values that they have, in the order of the file."""
    events = []
    for kind, columns in scanned.events:
        values = {name: column.tolist() for name, column in columns.items()}
        for row in range(len(values["position"])):
            event = {}
            for name, column in values.items():
                value = column[row]
                if name in TEXTS:
                    event[name] = scanned.texts[value] if value >= 0 else None
                elif isinstance(value, float):
                    event[name] = value.hex() if value == value else None
                else:
                    event[name] = None if value == MISSING else value
            present = {name: value for name, value in event.items() if value is not None}
            events.append((event["position"], kind, sorted(present.items())))
    return sorted(events)


def dtypes(scanned: Scanned) -> dict[tuple[str, str], set[str]]:
    return {
        (kind, name): column.dtype
        for kind, columns in scanned.events
        for name, column in columns.items()
    }


def assert_same(data: bytes, dialect: Dialect, cut: int = 0) -> int:
    """The scanner returns what regular expressions find; return the number of events.

    Args:
        data: the text.
        dialect: its writer.
        cut: where a block ends.
    """
    scanner = Scanner(dialect, core.load(core.FOLDER)[0])
    ranges = scanner.add(block_of(data[:cut])) if cut else []
    ranges += scanner.add(block_of(data[cut:], cut))
    scanned = scanner.scanned()
    assert scanned.unmatched == ranges
    expected = [expected_of(data[:cut], dialect)] if cut else []
    expected.append(expected_of(data[cut:], dialect, cut))
    assert ranges == [between for one in expected for between in one.unmatched]
    assert rows(scanned) == [row for one in expected for row in one.rows]
    assert scanned.num_flows == sum(one.num_flows for one in expected)
    used = {value for _, _, event in rows(scanned) for _, value in event if type(value) is bytes}
    assert set(scanned.texts) == used
    assert len(scanned.texts) == len(used)
    return len(rows(scanned))


WORDS = st.text("abc XYZ()_:[]1 µ", max_size=70).map(lambda text: text.encode()[:80])
DIGITS = st.integers(1, 20).flatmap(
    lambda count: st.text("0123456789", min_size=count, max_size=count)
)
SIGN = st.sampled_from(["", "", "", "-"])
NUMBER = st.one_of(
    st.integers(-(2**31) - 2, 2**31 + 1).map(str), st.builds(str.__add__, SIGN, DIGITS)
)
REAL = st.one_of(
    st.builds("{}{}.{}".format, SIGN, DIGITS, DIGITS),
    st.floats(0, 1e6).map("{:.6f}".format),
    st.sampled_from(["inf", "-inf", "nan", "-nan", "1.", ".5", "0.0", "-0.0"]),
)
VALUES = {
    "d": NUMBER.map(str.encode),
    "f": st.builds("{}{}.{:03}".format, SIGN, DIGITS, st.integers(0, 1001)).map(str.encode),
    "g": REAL.map(str.encode),
    "w": WORDS,
    "l": st.one_of(st.sampled_from([b"{}", b'{"X":[[4,128]]}', b"", b"[1]"]), WORDS),
    "o": st.sampled_from([b"{}", b'{"X":[[4,128]]}', b"{{}}", b"}{", b"{", b"", b'{"a":"}"}']),
    "s": st.one_of(
        WORDS,
        st.builds(
            bytes.__add__,
            WORDS,
            st.sampled_from(
                [b"[1.250 ms]", b"[0 us]", b"[1 s]", b"[x s]", b"[1 ns]", b" s]", b"[1]"]
            ),
        ),
    ),
}


@st.composite
def printed(draw: st.DrawFn, layout: EventPattern) -> bytes:
    """An event of a layout; its numbers may be too long, and its texts too odd, to match."""
    text = layout.prefix
    for field in layout.fields:
        text += draw(VALUES[field.spec]) + field.after
    return text


def sample(layout: EventPattern, name: bytes = b"name") -> bytes:
    """An event of a layout."""
    values = {"d": b"7", "f": b"1.250", "g": b"0.5", "w": b"w", "l": b'{"X":[]}', "s": name}
    values["o"] = values["l"]
    return layout.prefix + b"".join(values[field.spec] + field.after for field in layout.fields)


def lists_of_events(name: str) -> st.SearchStrategy[bytes]:
    layouts = st.sampled_from(DIALECTS[name].layouts).flatmap(printed)
    other = st.sampled_from(NASTY)
    return st.lists(st.one_of(layouts, layouts, layouts, other), max_size=12).map(b"".join)


@native
@pytest.mark.parametrize("size", [0, 10, 4096, 8000, -1])
def test_a_part_of_the_library_is_not_loaded(folder, size):
    """Loading it ends the process."""
    library = folder / core.LIBRARY
    library.write_bytes(library.read_bytes()[:size])
    core.load.cache_clear()
    assert core.choose()[:2] == (core.PYTHON, f"{core.LIBRARY} is truncated")


@native
class TestScanner:
    """The columns, texts, ranges and counts are those that regular expressions find."""

    @pytest.mark.parametrize("name", DIALECTS)
    @given(data=st.data())
    def test_events_of_all_layouts(self, name, data):
        text = data.draw(lists_of_events(name))
        assert_same(text, DIALECTS[name])

    @pytest.mark.parametrize("name", DIALECTS)
    def test_every_layout_has_an_event(self, name):
        """Otherwise a layout that never matches would go unnoticed."""
        for layout in DIALECTS[name].layouts:
            text = sample(layout)
            scanner = Scanner(DIALECTS[name], core.load(core.FOLDER)[0])
            assert scanner.add(block_of(text)) == []
            scanned = scanner.scanned()
            assert len(scanned.events) + scanned.num_flows == 1
            assert_same(text, DIALECTS[name])

    @pytest.mark.parametrize(
        "path", sorted(RUNS.rglob("*.json.gz")), ids=lambda path: path.parent.name
    )
    def test_recorded_traces(self, path):
        text = gzip.decompress(path.read_bytes())
        text = text[start_of_events(text) :]
        dialect = DIALECTS[dialect_of(text)]
        assert assert_same(text, dialect) > 20
        cut = text.rindex(dialect.start, 0, len(text) // 2)
        assert_same(text, dialect, cut)

    @given(seed=st.integers(0, 2**32))
    def test_changed_bytes(self, seeds, seed):
        rng = random.Random(seed)
        text, dialect = rng.choice(seeds)
        assert_same(mutated(text, rng), dialect)

    @pytest.mark.parametrize("what", LONG)
    @pytest.mark.all
    def test_files_made_to_be_slow(self, what):
        for dialect in DIALECTS.values():
            assert_same(LONG[what](), dialect)

    def test_dtypes(self, seeds):
        for text, dialect in seeds:
            scanner = Scanner(dialect, core.load(core.FOLDER)[0])
            scanner.add(block_of(text))
            for (_, name), dtype in dtypes(scanner.scanned()).items():
                if name in TEXTS:
                    assert dtype == np.int32, name
                elif name in fixed_layout.NARROW:
                    assert dtype in (np.int32, np.int64)
                else:
                    assert dtype in (np.int64, np.float64)


@pytest.fixture(scope="module")
def seeds(tmp_path_factory) -> list[tuple[bytes, Dialect]]:
    """The list of events of one trace, as text, with its dialect; of both writers."""
    directory = tmp_path_factory.mktemp("seeds")
    pb = write(directory / "a.pb", *gpu_traces.training(2))
    write_paddle_json(read(pb), directory / "ours.json")
    try:
        from tests.oracles import paddle_tables

        paddle_tables.load_result(pb).save(str(directory / "theirs.json"), "json")
    except ImportError:
        pass
    texts = [path.read_bytes() for path in directory.glob("*.json")]
    texts = [text[start_of_events(text) :] for text in texts]
    return [(text, DIALECTS[dialect_of(text)]) for text in texts]


SMALL = Dialect(
    (EventPattern("event", '\n{"n":%d{pid},"name":"%w{name}"}'),), b'\n{"n":', True, True
)


@native
class TestColumns:
    """How columns store values, on a layout of two fields."""

    @staticmethod
    def scanned(*events: str, dialect: Dialect = SMALL) -> Scanned:
        scanner = Scanner(dialect, core.load(core.FOLDER)[0])
        for event in events:
            assert scanner.add(block_of(event.encode())) == []
        return scanner.scanned()

    @pytest.mark.parametrize(
        ("values", "dtype"),
        [
            ([0, 2**31 - 1, -(2**31)], np.int32),
            ([0, 2**31], np.int64),
            ([-(2**31) - 1, 5], np.int64),
            ([*range(1000), 2**40, *range(1000)], np.int64),
        ],
    )
    def test_integers_are_as_narrow_as_all_values_allow(self, values, dtype):
        ((_, columns),) = self.scanned(
            *(f'\n{{"n":{value},"name":"a"}}' for value in values)
        ).events
        assert columns["pid"].tolist() == values
        assert columns["pid"].dtype == dtype

    def test_values_outlive_the_scanner(self):
        ((_, columns),) = self.scanned('\n{"n":1,"name":"a"}').events
        assert columns["pid"].tolist() == [1]
        columns["pid"][0] = 2  # they may be changed
        assert columns["pid"].tolist() == [2]

    def test_many_texts(self):
        names = [f"name {number}" for number in range(5000)]
        scanned = self.scanned(*(f'\n{{"n":1,"name":"{name}"}}' for name in [*names, *names]))
        ((_, columns),) = scanned.events
        numbers = columns["name"].tolist()
        assert [scanned.texts[number].decode() for number in numbers] == [*names, *names]
        assert len(scanned.texts) == len(names)

    def test_nothing(self):
        assert self.scanned() == Scanned([], [], [], 0)
        assert self.scanned("") == Scanned([], [], [], 0)

    def test_fields_that_only_some_layouts_have(self):
        """Rows before and after the layout with the field have a missing value there."""
        dialect = Dialect(
            (
                EventPattern("event", '\n{"n":%d{pid}}'),
                EventPattern("event", '\n{"n":%d{pid},"r":%g{r},"i":%d{tid},"name":"%w{name}"}'),
            ),
            b'\n{"n":',
            True,
            True,
        )
        long = '\n{"n":2,"r":0.5,"i":7,"name":"a"}'
        ((_, columns),) = self.scanned('\n{"n":1}', long, '\n{"n":3}', dialect=dialect).events
        assert columns["pid"].tolist() == [1, 2, 3]
        assert columns["tid"].tolist() == [MISSING, 7, MISSING]
        assert columns["name"].tolist() == [-1, 0, -1]
        assert np.isnan(columns["r"]).tolist() == [True, False, True]

    def test_threads_scan_at_the_same_time(self, seeds):
        text, dialect = seeds[0]
        results = [None] * 4

        def scan(number: int) -> None:
            scanner = Scanner(dialect, core.load(core.FOLDER)[0])
            for _ in range(20):
                scanner.add(block_of(text))
            results[number] = rows(scanner.scanned())

        threads = [threading.Thread(target=scan, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results[0]
        assert all(result == results[0] for result in results)

    def test_a_contradictory_program_of_events_is_refused(self):
        library, _ = core.load(core.FOLDER)
        code = FORMS.program
        for length in range(len(code)):
            assert library.ppprof_reader_new(code[:length], length, bytes(16)) is None
        for place in range(0, len(code) - 3, 4):  # some numbers are counts and indices
            changed = code[:place] + b"\xff\xff\xff\xff" + code[place + 4 :]
            library.ppprof_reader_free(library.ppprof_reader_new(changed, len(code), bytes(16)))

    def test_a_contradictory_program_is_refused(self):
        """Its length is wrong at every place where it can end too early."""
        library, _ = core.load(core.FOLDER)
        code = _program_of(SMALL).code
        for length in range(len(code)):
            assert library.ppprof_scanner_new(code[:length], length, bytes(16)) is None


def plain(scanned: Scanned) -> tuple:
    return rows(scanned), scanned.texts, scanned.unmatched, scanned.num_flows


@native
class TestRanges:
    """The compiled core reads a range of a file by itself."""

    @pytest.mark.parametrize("block_bytes", [1, 40, 700, 1 << 20])
    def test_it_is_scanned_as_its_blocks_are(self, seeds, tmp_path, block_bytes):
        """Also behind and before other bytes, with odd text, and cut at any place."""
        path = tmp_path / "trace.json"
        for text, dialect in seeds:
            for data in (text, text[:-300], mutated(text, random.Random(block_bytes))):
                path.write_bytes(b"before" + data + dialect.start + b"behind")
                end = 6 + len(data)
                expected, found = (Scanner(dialect, core.library()) for _ in range(2))
                control = Control(6, 0)
                with TraceStream(path, first=6) as source:
                    assert found.add_range(source, 6, end, block_bytes, control)
                    for block in source.blocks(dialect.last_start, end, num_bytes=block_bytes):
                        expected.add(block)
                assert control.position == end
                assert plain(found.scanned()) == plain(expected.scanned())

    def test_a_scan_that_is_cancelled_ends_after_its_block(self, seeds, tmp_path):
        text, dialect = seeds[0]
        (tmp_path / "trace.json").write_bytes(text)
        control = Control(0, 1)
        with TraceStream(tmp_path / "trace.json") as source:
            scanner = Scanner(dialect, core.library())
            assert not scanner.add_range(source, 0, len(text), 700, control)
        assert 0 < control.position < len(text) // 2

    def test_what_cannot_be_read_is_left_to_the_caller(self, seeds, tmp_path, monkeypatch):
        text, dialect = seeds[0]
        monkeypatch.setattr("ppprof.trace.fastpath.native.store.MAX_EVENT_BYTES", 5000)
        path = tmp_path / "trace.json"
        path.write_bytes(text[:1000] + bytes(20_000))
        with TraceStream(path) as source:
            scanners = [Scanner(dialect, core.library()) for _ in range(2)]
            assert not scanners[0].add_range(source, 0, 21_000, 700, Control())
            descriptor = os.open(tmp_path, os.O_RDONLY)  # of a folder, which has no bytes
            os.dup2(descriptor, source.descriptor)
            os.close(descriptor)
            assert not scanners[1].add_range(source, 0, 21_000, 700, Control())


PORTABLE = ("-U__SIZEOF_INT128__", "-U__BYTE_ORDER__", "-D__BYTE_ORDER__=0")
"""Compile the code for machines of another byte order, and without integers of 128 bits."""


@pytest.mark.all
def test_hostile_inputs_under_sanitizers(tmp_path, seeds):
    """No read out of bounds, no undefined behaviour, no leak; also when memory runs out."""
    programs = [compiled(tmp_path / "fuzz"), compiled(tmp_path / "portable", *PORTABLE)]
    rng = random.Random(1)
    for number, dialect in enumerate(DIALECTS.values()):
        code = tmp_path / f"program{number}"
        code.write_bytes(_program_of(dialect).code)
        texts = [make() for make in LONG.values()]
        for text, own in seeds:
            texts += [mutated(text, rng) for _ in range(300)] if own is dialect else [text]
        texts += [text[: rng.randrange(len(text))] for text, _ in seeds for _ in range(50)]
        texts += [b"", *NASTY, *(sample(layout) for layout in dialect.layouts)]
        texts.append(b"".join(sample(dialect.layouts[0], b"%d" % name) for name in range(2000)))
        paths = []
        for index, text in enumerate(texts):
            paths.append(tmp_path / f"{number}_{index}")
            paths[-1].write_bytes(text)
        assert_sound(programs, code, paths)


@pytest.mark.all
def test_hostile_events_under_sanitizers(tmp_path):
    """The same for the reader of events by their keys."""
    programs = [
        compiled(tmp_path / "fuzz", source=FUZZ_EVENTS),
        compiled(tmp_path / "portable", *PORTABLE, source=FUZZ_EVENTS),
    ]
    in_threads = compiled(tmp_path / "threads", source=FUZZ_EVENTS, sanitizers="thread")
    code = tmp_path / "program"
    code.write_bytes(FORMS.program)
    rng = random.Random(1)
    text = KINETO.read_bytes()
    text = text[start_of_events(text) : text.rindex(b"]")]
    events = text.strip().split(b",\n")
    pieces = [b",\n".join(rng.sample(events, 3)) for _ in range(100)]
    texts = [b"", text, *NASTY, *events, *(make() for make in LONG.values())]
    texts += [mutated(rng.choice([*pieces, text]), rng) for _ in range(600)]
    paths = []
    for index, content in enumerate(texts):
        paths.append(tmp_path / f"{index}")
        paths[-1].write_bytes(content)
    assert_sound(programs, code, paths)
    assert_sound([programs[0], in_threads], code, paths[-60:])


@pytest.mark.all
def test_trees_under_sanitizers(tmp_path):
    """The functions that get whole arrays: their tests again, with a core that checks itself."""
    checkout = Path(core.__file__).parents[3]
    shutil.copytree(checkout / "ppprof", tmp_path / "ppprof")
    shutil.copytree(checkout / "tests", tmp_path / "tests")
    shutil.copy(checkout / "pyproject.toml", tmp_path)
    try:
        build(tmp_path, ("-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"))
    except BuildError as error:
        pytest.skip(f"needs a C compiler with sanitizers: {error}")
    preload = subprocess.run(
        ["cc", "-print-file-name=libasan.so"], check=True, capture_output=True, text=True
    ).stdout.strip()
    files = ("tests/trace/test_tree_arrays.py", "tests/trace/test_nesting.py")
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files],
        cwd=tmp_path,
        env={
            **os.environ,
            **{"LD_PRELOAD": preload, "ASAN_OPTIONS": "detect_leaks=0", core.VARIABLE: "native"},
            "PYTHONPATH": str(tmp_path),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]


def assert_sound(programs: list[Path], code: Path, paths: list[Path]) -> None:
    """All programs print the same about the files, and no sanitizer complains."""
    outputs = []
    for program in programs:
        done = subprocess.run(
            [program, code, *paths], capture_output=True, text=True, check=False, timeout=600
        )
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout.splitlines())
    assert len(outputs[0]) == len(paths)
    assert outputs[0] == outputs[1]


def compiled(
    program: Path, *options: str, source: Path = FUZZ, sanitizers: str = "address,undefined"
) -> Path:
    """The program of ``source`` with sanitizers."""
    if not shutil.which("cc"):
        pytest.skip("needs gcc or clang as cc")
    built = subprocess.run(
        [
            *("cc", "-std=c99", "-g", "-O1", "-pthread", f"-fsanitize={sanitizers}", *options),
            *("-fno-sanitize-recover=all", f"-I{core.FOLDER}", "-o", program, source),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if "cannot find" in built.stderr:
        pytest.skip("needs the compiler's libraries of sanitizers")
    assert built.returncode == 0, built.stderr
    return program
