"""The timeline of ``ppprof report`` in a real Chromium, compared with the tables that it is made of."""

from __future__ import annotations

import json
import re

import numpy as np
import polars as pl
import pytest

import ppprof
from benchmarks import gpu_job
from benchmarks.page import events_of
from ppprof.analysis.ranks.step_table import own_time
from ppprof.report.notebook import Page
from ppprof.run.report import collect_report_data
from tests.fixtures.timeline import Thread, span, write
from tests.fixtures.timeline_view import FIGURE, T, View, axe
from tests.jobs.planted import COMMITTED
from tests.oracles.chromium import EXECUTABLE, SKIPPED, Opened, browser
from tests.report.runs_and_pages import EVIL, gpu, page_of

pytestmark = [
    pytest.mark.all,
    pytest.mark.browser,
    pytest.mark.skipif(EXECUTABLE is None, reason=SKIPPED),
]


def torchs(path):
    """An operator of 1 to 100 ms on thread 7, in eight Python functions, one in the other."""
    frames = [
        ("python_function", f"net.py({line}): f{line}", line, 110 - line) for line in range(8)
    ]
    events = [
        {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 7, "args": {}}
        | {"ts": 1e6 + start * 1000, "dur": (end - start) * 1000}
        for cat, name, start, end in [
            ("user_annotation", "ProfilerStep#0", 0, 110),
            ("cpu_op", "aten::mm", 10, 90),
            *frames,
        ]
    ]
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return path


def calling(folder):
    """Two ranks. The first calls the second, a process of its own, and one whose events it has."""
    us = 1000
    recorded = "rpc#h(worker0 -> pool)"

    def calls(name, start, *inside):
        return span("PythonUserDefined", name, start * us, (start + 100) * us, *inside)

    own = (
        calls("rpc#f(worker0 -> worker1)", 100),
        calls("rpc#g(worker0 -> encoder)", 300),
        calls(recorded, 500, span("Operator", f"{recorded}#remote_op: relu", 520_000, 540_000)),
    )
    folder.mkdir()
    for rank, inside in enumerate((own, ())):
        step = span("ProfileStep", "ProfileStep#0", 0, 1000 * us, *inside)
        write(folder / f"rank_{rank}.pb", Thread(1, "main", (step,)))
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("timelines")
    return {
        "gpu": gpu(folder / "gpu"),
        "job": write(folder / "job.pb", *gpu_job.threads(2, 6), devices=(0,)),
        "ranks": COMMITTED / "eight_ranks",
        "calls": calling(folder / "calls"),
        "torch": torchs(folder / "torch.json"),
    }


@pytest.fixture(scope="module")
def pages(runs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    paths = {name: page_of(folder, name, run) for name, run in runs.items()}
    return {**paths, "zh": page_of(folder, "zh", runs["gpu"], "--language", "zh")}


@pytest.fixture(scope="module")
def chromium():
    with browser() as started:
        yield started


@pytest.fixture
def opened(chromium, pages):
    """Open pages at a hash; at the end, check that none made a request or logged an error."""
    all_of_them = []

    def open_page(name, hash_="", **options):
        found = Opened(chromium, pages[name], **options)
        all_of_them.append(found)
        if hash_:
            found.page.goto(pages[name].as_uri() + hash_)
        return View(found)

    yield open_page
    for page in all_of_them:
        assert page.complaints == []
        addresses = {url.partition("#")[0] for url in page.requests}
        assert addresses - {"data:,"} <= {path.as_uri() for path in pages.values()}
        page.close()


def table_of(run, rank=0):
    """Return the events of a rank with row, end_ns and start_ns from the start of the page's trace."""
    report = collect_report_data(ppprof.open(run))
    events = ppprof.open(run).trace(rank=rank).events.with_row_index("row")
    start = events["start_ns"].to_numpy()
    clock = report.cluster.clocks.get(rank)
    start = (start if clock is None else clock.to_reference(start)) - report.origin_ns
    return events.with_columns(
        pl.col("name", "category").cast(pl.String),
        start_ns=pl.Series(start),
        end_ns=pl.Series(start + events["dur_ns"].to_numpy()),
    )


@pytest.mark.parametrize(("name", "rank"), [("job", 0), ("ranks", 0), ("ranks", 5)])
def test_every_event_is_in_the_page(opened, runs, name, rank):
    """The scripts unpack the whole table: names, times on the reference clock, steps and links."""
    view = opened(name)
    rows = view.page.evaluate(
        f"""async rank => {{
            const {{ store }} = {T};
            const found = [];
            const owner = store.ranks.find(at => at.rank === rank);
            for (const chunk of owner.tracks.flatMap(track => track.chunks)) {{
                const events = await store.wait(chunk);
                for (let at = chunk.repeated; at < events.num; at++) found.push([events.row[at],
                    owner.signatures.name[events.sig[at]], events.start[at], events.dur[at], events.step[at] - 1,
                    events.parent[at] < 0 ? -1 : events.row[events.parent[at]]]);
            }}
            return found;
        }}""",
        rank,
    )
    expected = table_of(runs[name], rank).with_columns(
        pl.when(pl.col("device").is_null()).then("parent").fill_null(-1),
        pl.col("step").fill_null(-1),
    )
    columns = ["row", "name", "start_ns", "dur_ns", "step", "parent"]
    assert sorted(map(tuple, rows)) == expected.select(columns).rows()


@pytest.mark.jobs
def test_a_click_shows_what_the_tables_say(opened, runs):
    """Of a kernel: times, step, layers, launch; of its operator: shapes, FLOPs and memory."""
    view, events = opened("gpu"), table_of(runs["gpu"])
    kernel = events.filter(name=EVIL, step=1).row(0, named=True)
    view.click(0, kernel["row"])
    facts = view.facts
    assert view.figure.locator(".tl-name").inner_text() == EVIL
    assert facts["Start"] == f"{kernel['start_ns'] / 1e9:.9f}".rstrip("0") + " s"
    assert facts["Length"] == "30 us"
    assert (facts["Step"], facts["Inside"]) == ("1", "GPT › Block")
    assert (facts["Stream"], facts["Grid · block"]) == (
        "GPU 0 · stream 7",
        "80 × 1 × 1 · 256 × 1 × 1",
    )
    assert view.links("Launched by") == ["cudaLaunchKernel · 2 us"]
    assert view.hash["select"] == f"0.{kernel['row']}"
    assert "img" not in view.page.evaluate("[...document.images].map(() => 'img')")
    operator = events.filter(name="matmul", step=1).row(0, named=True)
    view.click(0, operator["row"])
    facts = view.facts
    assert facts["Shapes"] == "[512,512] [512,1024]"
    assert (
        facts["FLOPs"]
        == f"{2 * 512 * 512 * 1024:,} · {2 * 512 * 512 * 1024 / 30e-6 / 1e12:.1f} TFLOP/s"
    )
    assert facts["Reads and writes"] == "2.5 MiB"
    assert facts["Memory"] == "3 MiB allocated, 0 B freed; then 3 MiB in use"
    assert view.links("Runs on the device") == [f"{EVIL} · 30 us"]


def test_an_arrow_leads_from_the_launch_to_the_kernel(opened, runs):
    view, events = opened("gpu"), table_of(runs["gpu"])
    kernel = events.filter(name="gemm_grad", step=2).row(0, named=True)
    launch = events.filter(row=kernel["parent"]).row(0, named=True)
    view.click(0, kernel["row"])
    arrow = {"from": launch["end_ns"], "to": kernel["start_ns"]}
    arrows = "t.arrows.map(({from, to}) => ({from: from.time, to: to.time}))"
    assert view.eval(arrows) == [arrow]
    with_arrow = view.figure.locator(".tl-body").screenshot()
    view.eval("(t.arrows = [], t.painter.paint())")
    assert view.figure.locator(".tl-body").screenshot() != with_arrow
    view.figure.locator(".tl-links button").click()
    view.settle()
    assert view.eval("t.selected.row") == launch["row"]
    assert view.eval(arrows) == [arrow]


def test_a_collective_leads_to_the_other_ranks(opened, runs):
    view, events = opened("ranks"), table_of(runs["ranks"])
    other = table_of(runs["ranks"], 1)
    same = {"name": "all_reduce", "step": 4, "peers": "0,1"}
    first, peer = (table.filter(**same).row(0, named=True) for table in (events, other))
    assert view.page.evaluate("document.images.length") == 0
    view.look(first["start_ns"] - 1e6, first["end_ns"] + 1e6)
    view.click(0, first["row"])
    facts = view.facts
    assert (facts["Axis"], facts["Peers"]) == ("mp", "0,1")
    assert facts["Bytes"].endswith(f"({first['bytes']:,} B)")
    assert facts["Thread"].endswith(f"thread {first['thread']}")
    assert [text.partition(" · ")[0] for text in view.links("The same communication")] == ["Rank 1"]
    view.figure.locator(".tl-links", has_text="The same").locator("button").click()
    view.settle()
    assert view.eval("[t.selected.track.rank.rank, t.selected.row]") == [1, peer["row"]]
    assert (
        view.figure.get_by_role("button", name="Rank 1 ").get_attribute("aria-expanded") == "true"
    )


@pytest.mark.parametrize("name", ["ranks", "gpu"])
def test_the_critical_path_is_marked_where_it_is(opened, runs, name):
    """As long as the steps, on the tracks of the graph; a switch of the keyboard, off at first."""
    graph = ppprof.open(runs[name]).graph()
    view = View(opened(name, bypass_csp=True))
    canvas = view.figure.locator(".tl-body")
    switch = view.figure.get_by_role("button", name="Critical path")
    assert switch.get_attribute("aria-pressed") == "false"
    plain = canvas.screenshot()
    switch.press("Enter")
    view.page.wait_for_function(f"() => {T}.path?.length")
    view.settle()
    assert switch.get_attribute("aria-pressed") == "true"
    assert canvas.screenshot() != plain
    rows = view.eval(
        """t.path.map(({from, to, rank, track}) =>
            [to - from, rank.rank, track.isHost ? null : track.stream, track.number])"""
    )
    shown = pl.DataFrame(rows, ["time_ns", "rank", "stream", "track"], orient="row")
    steps = graph.steps.select(pl.col("end_ns") - pl.col("begin_ns")).sum().item()
    assert shown["time_ns"].sum() == pytest.approx(steps, abs=shown.height)
    keys = ["rank", "stream"]
    pieces = graph.pieces().with_columns(time_ns=pl.col("end_ns") - pl.col("begin_ns"))
    expected, found = (
        table.group_by(keys).agg(pl.col("time_ns").sum()).sort(keys) for table in (pieces, shown)
    )
    assert found["rank"].n_unique() == (1 if name == "gpu" else 8)
    assert found.select(keys).rows() == expected.select(keys).rows()
    assert found["time_ns"].to_list() == pytest.approx(expected["time_ns"].to_list(), rel=1e-6)
    assert shown.filter(pl.col("stream").is_null())["track"].unique().to_list() == [0]
    view.page.evaluate(axe())
    run = f"axe.run(document.querySelector('{FIGURE}'), {{resultTypes: ['violations']}})"
    impacts = [each["impact"] for each in view.page.evaluate(run)["violations"]]
    assert not {"serious", "critical"}.intersection(impacts)
    switch.press("Enter")
    view.settle()
    assert canvas.screenshot() == plain


def test_a_send_leads_to_its_receive(opened, runs):
    view, events = opened("ranks"), table_of(runs["ranks"])
    send = events.filter(name="send", step=4).row(1, named=True)
    peer = int(send["peers"])
    view.look(send["start_ns"] - 1e6, send["end_ns"] + 1e6)
    view.click(0, send["row"])
    receives = table_of(runs["ranks"], peer).filter(name="recv", step=4, peers="0")
    arrows = view.eval(
        "t.arrows.map(({from, to}) => [from.track.rank.rank, to.track.rank.rank, to.time])"
    )
    assert arrows == [[0, peer, receives["end_ns"][1]]]


def test_a_remote_call_leads_to_the_rank_of_its_worker_or_names_it(opened, runs):
    view, events = opened("calls"), table_of(runs["calls"])
    arrows = (
        "t.arrows.map(({from, to, text}) => [from.time, to && to.track.rank.rank, text ?? null])"
    )

    def select(name):
        row = events.filter(pl.col("name") == name).row(0, named=True)
        view.click(0, row["row"])
        return row["start_ns"]

    start = select("rpc#f(worker0 -> worker1)")
    assert view.facts["Node ID"] == "worker1 · Rank 1"
    assert view.eval(arrows) == [[start, 1, None]]
    start = select("rpc#g(worker0 -> encoder)")
    assert view.facts["Node ID"] == "encoder"
    assert view.eval(arrows) == [[start, None, "encoder"]]
    drawn = view.eval("t.body.toDataURL()")
    view.eval("(t.arrows = [], t.painter.paint())")
    assert view.eval("t.body.toDataURL()") != drawn
    select("rpc#h(worker0 -> pool)")
    assert view.facts["Node ID"] == "pool"
    assert view.eval(arrows) == []  # its events are in the call


def test_python_functions_are_rows_that_unfold(opened, runs):
    view, num_events = opened("torch"), table_of(runs["torch"]).height
    button = view.figure.locator(".tl-python")
    assert button.inner_text() == "▸ Python, thread 7"
    rows = (
        "t.stack.lines.filter(({track}) => track).map(({track, rows}) => [track.is_python, rows])"
    )
    assert view.eval(rows) == [[False, 2], [True, 1]]
    button.click()
    view.settle()
    assert (button.inner_text()[0], button.get_attribute("aria-expanded")) == ("▾", "true")
    assert view.eval(rows) == [[False, 2], [True, 8]]
    view.click(0, num_events + 7)
    assert view.figure.locator(".tl-name").inner_text() == "net.py(7): f7"
    assert view.facts["Kind"] == "Python function"
    assert view.facts["Length"] == "96 ms"
    view.page.keyboard.press("p")
    view.settle()
    assert view.eval("t.selected.name") == "net.py(6): f6"
    button.click()  # the row of a folded track is that of the outermost functions
    view.settle()
    view.click(0, num_events)
    assert view.eval("t.selected.name") == "net.py(0): f0"
    view.eval("t.searchBox.value = 'f3', t.search('f3')")
    view.eval("t.nextMatch(1)")
    view.settle()
    assert view.eval("t.selected.name") == "net.py(3): f3"
    assert view.eval(rows) == [[False, 2], [True, 8]]


def test_a_posted_send_has_one_arrow_to_the_posted_receive(opened, runs):
    """And not to the recv that the irecv starts on another thread, which the send's arrow ends at."""
    view, events = opened("ranks"), table_of(runs["ranks"])
    posted = events.filter(name="isend", step=4).row(1, named=True)
    peer = int(posted["peers"])
    view.look(posted["start_ns"] - 1e6, posted["end_ns"] + 1e6)
    view.click(0, posted["row"])
    receive = table_of(runs["ranks"], peer).filter(name="irecv", step=4, peers="0")
    assert view.eval("t.selected.name") == "isend"
    arrows = view.eval("t.arrows.map(({from, to}) => [from.track.rank.rank, to.track.rank.rank])")
    assert arrows == [[0, peer]]
    assert view.eval("t.arrows[0].to.time") == receive["end_ns"][1]


@pytest.mark.parametrize(
    ("name", "text", "width", "scheme"),
    [
        ("job", "GEMM", 1440, "dark"),
        ("job", "layer", 1280, "light"),
        ("ranks", "all_reduce", 390, "dark"),
    ],
)
def test_a_search_counts_the_matches(opened, runs, name, text, width, scheme):
    view = opened(name, viewport={"width": width, "height": 900}, color_scheme=scheme)
    view.figure.get_by_label("Find events by name").fill(text)
    ranks = ppprof.open(runs[name]).ranks
    matches = [
        table_of(runs[name], rank).filter(
            pl.col("name").str.to_lowercase().str.contains(text.lower())
        )
        for rank in ranks
    ]
    num = sum(table.height for table in matches)
    assert view.figure.locator(".tl-found").inner_text() == f"{num:,} matches"
    first = matches[0].sort("start_ns", "row")
    for number in range(3):
        view.page.keyboard.press("Enter")
        view.settle()
        assert view.figure.locator(".tl-found").inner_text() == f"{number + 1} of {num:,}"
        assert view.eval("t.selected.start") == first["start_ns"][number]
    view.page.keyboard.press("Shift+Enter")
    view.settle()
    assert view.eval("t.selected.start") == first["start_ns"][1]
    assert view.hash["find"] == text


def own_times(events, start, end):
    """Name -> time and number in [start, end) without the events inside, one event at a time."""
    found: dict[str, list[float]] = {}
    names, parents = events["name"].to_list(), dict(events.select("row", "parent").iter_rows())
    name_of = dict(zip(events["row"], names))
    for row, name, begin, finish in events.select("row", "name", "start_ns", "end_ns").iter_rows():
        length = min(finish, end) - max(begin, start)
        if length < 0 or (length == 0 and not (begin == finish and start <= begin < end)):
            continue
        entry = found.setdefault(name, [0, 0])
        entry[0] += length
        entry[1] += 1
        if parents[row] in name_of:
            found.setdefault(name_of[parents[row]], [0, 0])[0] -= length
    return {name: (time, num) for name, (time, num) in found.items() if num}


def test_a_dragged_range_gives_what_fills_it(opened, runs):
    view, events = opened("job"), table_of(runs["job"])
    box = view.figure.locator(".tl-body").bounding_box()
    y = box["y"] + 60
    view.page.mouse.move(box["x"] + 500, y)
    view.page.mouse.down()
    view.page.mouse.move(box["x"] + 620, y, steps=3)
    view.page.mouse.move(box["x"] + 800, y, steps=3)
    view.page.mouse.up()
    found = view.fill()
    start, end = view.eval("[t.range.from, t.range.to]")
    per_pixel = view.eval("t.perPixel")
    assert end - start == pytest.approx(300 * per_pixel, abs=2 * per_pixel)
    expected = {
        "MainThread · thread 8801": events.filter(thread=8801),
        "loader · thread 8844": events.filter(thread=8844),
        "pin_memory · thread 8845": events.filter(thread=8845),
        "GPU 0 · stream 7": events.filter(stream=7).with_columns(parent=pl.lit(None)),
        "GPU 0 · stream 20": events.filter(stream=20).with_columns(parent=pl.lit(None)),
    }
    wanted = {track: own_times(table, start, end) for track, table in expected.items()}
    assert set(found) == {track for track, names in wanted.items() if names}
    for track, names in found.items():
        assert {name: num for name, (_, num) in names.items()} == {
            name: num for name, (_, num) in wanted[track].items()
        }
        assert [names[name][0] for name in names] == pytest.approx(
            [wanted[track][name][0] for name in names], abs=0.5
        )
    kinds = view.page.eval_on_selector_all(
        ".tl-fill-kind tbody tr",
        """all => all.map(row => [row.closest("section").firstChild.textContent,
            row.cells[0].title, Number(row.dataset.ns), Number(row.dataset.num)])""",
    )
    for track, names in found.items():
        of_track = [row for row in kinds if row[0] == track]
        assert len({row[1] for row in of_track}) == len(of_track)
        assert sum(row[3] for row in of_track) == sum(num for _, num in names.values())
        assert sum(row[2] for row in of_track) == pytest.approx(
            sum(time for time, _ in names.values()), abs=1
        )
    title = view.figure.locator(".tl-name").inner_text()
    length = re.match(r"([\d.]+) (us|ms|s) from", title)
    scale = {"us": 1e3, "ms": 1e6, "s": 1e9}[length[2]]
    assert float(length[1]) * scale == pytest.approx(end - start, rel=0.01)


def test_the_wheel_zooms_with_ctrl_and_scrolls_without(opened):
    view = opened("job")
    box = view.figure.locator(".tl-body").bounding_box()
    x, y = box["x"] + 700, box["y"] + 40
    view.page.mouse.move(x, y)
    before = view.eval("t.timeAt(arg)", x - box["x"])
    length = np.diff(view.shown)[0]
    view.page.keyboard.down("Control")
    for _ in range(5):
        view.page.mouse.wheel(0, -100)
    view.page.keyboard.up("Control")
    view.settle()
    assert np.diff(view.shown)[0] < length / 3
    assert view.eval("t.timeAt(arg)", x - box["x"]) == pytest.approx(
        before, abs=view.eval("t.perPixel")
    )
    zoomed = view.shown
    view.page.mouse.wheel(300, 0)
    view.settle()
    assert view.shown[0] > zoomed[0]
    panned, top = view.shown, view.page.evaluate("scrollY")
    view.page.mouse.wheel(0, 120)
    view.settle()
    assert view.shown == panned
    assert view.page.evaluate("scrollY") + view.eval("t.scroller.scrollTop") != top


@pytest.mark.parametrize("width", [390, 1440])
def test_a_drag_over_the_minimap_moves_the_view(opened, width):
    view = opened("job", viewport={"width": width, "height": 900})
    view.look(1e6, 2e6)
    box = view.figure.locator(".tl-head").bounding_box()
    gutter, whole = view.eval("[t.gutter, t.store.end]")
    start, end = (box["x"] + gutter + share * (box["width"] - gutter) for share in (0.3, 0.6))
    y = box["y"] + 20
    view.page.mouse.move(start, y)
    view.page.mouse.down()
    assert np.mean(view.shown) == pytest.approx(0.3 * whole, rel=0.02)
    view.page.mouse.move(end, y, steps=4)
    view.page.mouse.up()
    view.settle()
    assert np.mean(view.shown) == pytest.approx(0.6 * whole, rel=0.02)
    assert np.diff(view.shown)[0] == pytest.approx(1e6)


def test_keys_zoom_move_and_walk(opened, runs):
    view, events = opened("gpu"), table_of(runs["gpu"])
    view.figure.locator(".tl-body").focus()
    press = view.page.keyboard.press

    def length():
        view.settle()
        return np.diff(view.shown)[0]

    whole = length()
    press("w")
    zoomed = length()
    assert zoomed < whole
    left = view.shown[0]
    press("d")
    view.settle()
    assert view.shown[0] > left
    assert length() == pytest.approx(zoomed)
    press("ArrowLeft")
    press("a")
    view.settle()
    assert view.shown[0] < left
    press("s")
    assert length() > zoomed
    press("Home")
    assert length() == whole
    names = []
    for key in (".", ".", "c", "c", "c", "p"):
        press(key)
        view.settle()
        names.append(view.eval("t.selected.name"))
    assert names == ["ProfileStep#0", "ProfileStep#1", "GPT", "Block", "matmul", "Block"]
    assert "Block" in view.figure.locator(".tl-live").inner_text()
    block = events.filter(name="Block", step=1).row(0, named=True)
    press("Enter")
    view.settle()
    assert view.shown[0] < block["start_ns"] < block["end_ns"] < view.shown[1]
    assert length() < 2 * block["dur_ns"]
    press("r")
    view.page.wait_for_selector(".tl-tables")
    assert view.eval("[t.range.from, t.range.to]") == [block["start_ns"], block["end_ns"]]
    press("Escape")
    assert view.eval("[t.range, t.selected]") == [None, None]
    press("/")
    assert view.page.evaluate("document.activeElement.type") == "search"


def ranks_of(view):
    texts = view.figure.locator(".tl-rank").all_inner_texts()
    return [int(re.search(r"Rank (\d+)", text)[1]) for text in texts]


def test_ranks_fold_are_filtered_and_ordered(opened, runs):
    view = opened("ranks")
    first = view.figure.locator(".tl-rank").first
    assert ranks_of(view) == list(range(8))
    assert first.get_attribute("aria-expanded") == "true"
    tall = view.eval("t.stack.height")
    first.click()
    assert view.figure.locator(".tl-rank").first.get_attribute("aria-expanded") == "false"
    assert view.eval("t.stack.height") < tall
    assert view.eval("t.stack.height") == 8 * 28
    view.figure.get_by_role("button", name="Unfold all ranks").click()
    assert view.eval("t.stack.folded.size") == 0
    tracks = view.eval("t.stack.lines.filter(line => line.track).length")
    assert tracks == sum(view.eval("t.store.ranks.map(rank => rank.tracks.length)"))
    ranks = view.figure.get_by_label("Ranks: 0,4-7 or pp1")
    for text, shown in (
        ("2-3,7", [2, 3, 7]),
        ("pp1", [2, 3, 6, 7]),
        ("dp1", [4, 5, 6, 7]),
        ("x", []),
    ):
        ranks.fill(text)
        assert ranks_of(view) == shown
    ranks.fill("")
    view.figure.locator("select").select_option("slowest")
    steps = collect_report_data(ppprof.open(runs["ranks"])).cluster.steps
    own = steps.group_by("rank").agg(own=own_time(steps).mean())
    assert ranks_of(view) == own.sort("own", "rank", descending=[True, False])["rank"].to_list()


def test_a_link_shows_time_rank_and_matches(opened):
    view = opened("ranks", "#t=0.5-0.75&rank=3&find=all_reduce")
    assert view.shown == pytest.approx((0.5e9, 0.75e9))
    assert view.figure.get_by_label("Find events by name").input_value() == "all_reduce"
    assert re.fullmatch(r"[\d,]+ matches", view.figure.locator(".tl-found").inner_text())
    assert (
        view.figure.get_by_role("button", name="Rank 3 ").get_attribute("aria-expanded") == "true"
    )
    view.page.evaluate(
        """() => { const link = document.createElement("a"); link.href = "#t=0.1-0.2&rank=6";
            link.textContent = "there"; document.querySelector("h1").append(link); scrollTo(0, 0); link.click(); }"""
    )
    view.page.wait_for_function(f"() => Math.round({T}.from / 1e6) === 100")
    view.settle()
    assert view.shown == pytest.approx((0.1e9, 0.2e9))
    box = view.figure.bounding_box()
    assert -2 <= box["y"] < 300
    view.page.go_back()
    view.page.wait_for_function(f"() => Math.round({T}.from / 1e6) === 500")


def test_the_view_is_in_the_address_and_back_returns(opened, runs):
    view, events = opened("gpu"), table_of(runs["gpu"])
    entries = view.page.evaluate("history.length")
    assert view.page.evaluate("location.hash") == ""
    view.figure.locator(".tl-body").focus()
    view.page.keyboard.press("w")
    view.settle()
    start, end = (float(text) * 1e9 for text in view.hash["t"].split("-"))
    assert (start, end) == pytest.approx(view.shown, abs=1)
    assert view.page.evaluate("history.length") == entries
    shown = view.shown
    block = events.filter(name="Block", step=1).row(0, named=True)
    view.click(0, block["row"])
    assert view.page.evaluate("history.length") == entries + 1
    view.look(block["start_ns"], block["end_ns"])
    view.page.go_back()
    view.page.wait_for_function(f"() => !{T}.selected")
    view.settle()
    assert view.shown == pytest.approx(shown, abs=2)
    view.page.go_forward()
    view.page.wait_for_function(f"() => {T}.selected")
    assert view.eval("t.selected.row") == block["row"]


def test_too_many_events_are_thinned_out_until_they_are_zoomed_in(opened):
    view = opened("job")
    assert view.eval("t.painter.isExact")
    view.eval("(t.store.loaded.clear(), t.store.held = 0)")
    view.eval("(t.painter.mostExact = 11000, t.store.mostHeld = 12000, t.painter.request())")
    view.settle()
    assert not view.eval("t.painter.isExact")
    view.look(1e6, 1.5e6)
    assert view.eval("t.painter.isExact")
    for start in np.linspace(0, view.eval("t.store.end") - 1e5, 12):
        view.look(float(start), float(start) + 1e5)
        assert view.eval("t.painter.isExact")
    assert view.eval("t.store.held") <= 12000


def test_a_million_events_fit_into_the_page_and_are_exact_when_zoomed_in(chromium, tmp_path, cli):
    path = tmp_path / "page.html"
    cli("report", events_of(tmp_path), "-o", path)
    assert path.stat().st_size <= 15e6
    opened = Opened(chromium, path)
    view = View(opened)
    chunks = "t.store.ranks[0].tracks.flatMap(track => track.chunks)"
    assert view.eval(f"{chunks}.reduce((sum, chunk) => sum + chunk.num - chunk.repeated, 0)") > 1e6
    assert not view.eval("t.painter.isExact")
    middle = view.eval("t.store.end") / 2
    view.look(middle, middle + 1e5)
    assert view.eval("t.painter.isExact")
    assert opened.complaints == []
    opened.close()


def test_another_theme_keeps_the_view(opened, runs):
    view, events = opened("gpu", color_scheme="light"), table_of(runs["gpu"])
    view.look(100e3, 200e3)
    view.click(0, events.filter(name="Block", step=1)["row"][0])
    bright = view.eval("t.painter.shades[1][1]")
    swatch = view.figure.locator(".tl-legend .tl-swatch").first
    before = swatch.evaluate("at => getComputedStyle(at).backgroundColor")
    view.page.locator("#theme").press("Enter")
    view.settle()
    assert view.shown == (100e3, 200e3)
    assert view.eval("t.selected.name") == "Block"
    assert view.eval("t.painter.shades[1][1]") != bright
    assert swatch.evaluate("at => getComputedStyle(at).backgroundColor") != before


def test_the_legend_names_the_kinds_and_highlights_one(opened, runs):
    view = opened("gpu")
    buttons = view.figure.locator(".tl-legend button")
    assert buttons.all_inner_texts() == [
        *("Step", "Forward, layers", "Backward", "Operator", "Runtime call", "Kernel")
    ]
    buttons.nth(5).click()
    assert buttons.nth(5).get_attribute("aria-pressed") == "true"
    assert view.eval("[...new Set(t.maskOf(t.store.ranks[0]))].sort()") == [0, 1]
    buttons.nth(5).click()
    assert view.eval("t.maskOf(t.store.ranks[0])") is None


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1280, "dark")])
def test_a_chinese_timeline_is_used_like_an_english_one(opened, runs, width, scheme):
    view = opened("zh", viewport={"width": width, "height": 900}, color_scheme=scheme)
    view.figure.locator(".tl-bar input").first.fill("matmul")
    assert view.figure.locator(".tl-found").inner_text() == "6 个匹配"
    view.page.keyboard.press("Enter")
    view.page.wait_for_selector(".tl-facts")
    facts = view.facts
    assert (facts["步"], facts["所在"]) == ("0", "GPT › Block")
    latin = {name for name in facts if not re.search("[\u4e00-\u9fff]", name)}
    assert latin <= {"Rank", "FLOPs", "Dtype"}
    assert view.hash["select"].startswith("0.")
    buttons = view.figure.locator(".tl-legend button").all_inner_texts()
    assert [text for text in buttons if not re.search("[\u4e00-\u9fff]", text)] == ["kernel"]


def test_texts_are_large_enough(opened):
    view = opened("ranks")
    sizes = view.page.eval_on_selector_all(
        f"{FIGURE} *", "all => all.map(at => parseFloat(getComputedStyle(at).fontSize))"
    )
    assert min(sizes) >= 11
    assert view.page.evaluate("parseFloat(FONT)") >= 11


@pytest.mark.parametrize("width", [390, 1440])
def test_no_hint_in_an_input_is_cut_off(opened, width):
    view = opened("ranks", viewport={"width": width, "height": 900})
    cut = view.page.eval_on_selector_all(
        f"{FIGURE} input",
        """all => all.filter(at => {
            const style = getComputedStyle(at), pen = document.createElement("canvas").getContext("2d");
            pen.font = style.font;
            const room = at.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
            return pen.measureText(at.placeholder).width > room;
        }).map(at => at.placeholder)""",
    )
    assert cut == []


def test_a_phone_pans_and_pinches(chromium, opened):
    view = opened("job", has_touch=True, is_mobile=True, device_scale_factor=2)
    view.page.set_viewport_size({"width": 390, "height": 844})
    view.settle()
    view.figure.scroll_into_view_if_needed()
    width = view.figure.locator(".drawing").bounding_box()["width"]
    assert width <= 390
    inner = view.page.evaluate(
        f"Math.max(...[...document.querySelectorAll('{FIGURE} *')].map(at => at.getBoundingClientRect().right))"
    )
    assert inner <= 391
    assert view.figure.locator(".tl-touch").is_visible()
    view.look(1e6, 2e6)
    body = view.figure.locator(".tl-body")
    body.scroll_into_view_if_needed()
    box = body.bounding_box()
    session = view.page.context.new_cdp_session(view.page)

    def touch(kind, *points):
        session.send(
            "Input.dispatchTouchEvent",
            {
                "type": kind,
                "touchPoints": [
                    {"x": box["x"] + x, "y": box["y"] + 30, "id": i} for i, x in enumerate(points)
                ],
            },
        )

    touch("touchStart", 250)
    for x in (230, 210, 190):
        touch("touchMove", x)
    touch("touchEnd")
    view.settle()
    start, end = view.shown
    assert start > 1e6
    assert end - start == pytest.approx(1e6)
    touch("touchStart", 200, 240)
    for apart in (10, 30, 50):
        touch("touchMove", 200 - apart, 240 + apart)
    touch("touchEnd")
    view.settle()
    assert view.shown[1] - view.shown[0] < 0.5e6


def test_a_tap_shows_the_event_and_its_links_lead_on(opened, runs):
    """On a phone: from a kernel to its launch by a tap on the link, and back by the history."""
    view = opened("gpu", has_touch=True, is_mobile=True, viewport={"width": 390, "height": 844})
    events = table_of(runs["gpu"])
    kernel = events.filter(name="gemm_grad", step=1).row(0, named=True)
    view.page.touchscreen.tap(*view.spot(0, kernel["row"]))
    view.page.wait_for_function(f"() => {T}.selected")
    view.settle()
    assert view.figure.locator(".tl-name").inner_text() == "gemm_grad"
    assert view.facts["Length"] == "19 us"
    view.figure.locator(".tl-links button").first.tap()
    view.settle()
    assert view.eval("t.selected.row") == kernel["parent"]
    view.page.go_back()
    view.page.wait_for_function(f"() => {T}.selected?.row === {kernel['row']}")


def test_in_a_notebook_the_page_has_no_address_and_works(chromium, pages, runs, tmp_path):
    """A cell shows the page in a sandboxed frame, whose history cannot be written."""
    outer = tmp_path / "notebook.html"
    outer.write_text(f"<body>{Page(pages['gpu'].read_text('utf-8'))._repr_html_()}</body>", "utf-8")
    page = chromium.new_context(offline=True).new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(outer.as_uri())
    frame = page.frame_locator("iframe")
    frame.locator(FIGURE).scroll_into_view_if_needed()
    frame.locator(".tl-legend button").first.wait_for()
    frame.locator(".tl-body").focus()
    page.keyboard.press("w")
    page.wait_for_timeout(400)
    page.keyboard.press(".")
    frame.locator(".tl-facts").wait_for()
    assert frame.locator(".tl-name").inner_text().startswith("ProfileStep#")
    frame.get_by_role("link", name="Timeline", exact=True).click()
    frame.get_by_role("link", name="Show in the timeline").first.click()
    page.wait_for_timeout(200)
    assert errors == []
    page.context.close()
