"""``ppprof report``: content of the page, and its behaviour in a real Chromium without a network."""

from __future__ import annotations

import re
import string
from html.parser import HTMLParser
from types import SimpleNamespace

import polars as pl
import pytest

import ppprof
from benchmarks import cluster_job
from ppprof.errors import InputError, UsageError
from ppprof.messages import LANGUAGES
from ppprof.report.html import blocks, charts, render
from ppprof.report.html.blocks import Words
from ppprof.report.html.links import Links
from ppprof.report.html.sections import _communication, _members, sections
from ppprof.run.report import collect_report_data
from ppprof.run.run import open as open_run
from tests.fixtures.findings import computing
from tests.fixtures.gpu_traces import training
from tests.fixtures.run_directories import run as of_job
from tests.fixtures.run_directories import step_lines
from tests.fixtures.timeline import Thread, alloc, free, kernel, launch, reserve, span, write
from tests.fixtures.words import words
from tests.jobs.planted import COMMITTED
from tests.report.runs_and_pages import EVIL, in_browser, page_of, pipeline

# Content of the page, read without a browser.


class Tags(HTMLParser):
    """Tags with their attributes, and the text outside scripts and styles."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.text, self._inside = [], "", ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag):
        self._inside = ""

    def handle_data(self, data):
        if self._inside not in ("script", "style"):
            self.text += data


@pytest.mark.parametrize("name", ["run", "zh", "gpu"])
def test_nothing_in_the_page_is_fetched(pages, name):
    found = Tags(pages[name].read_text("utf-8"))
    fetched = [
        (tag, key, value)
        for tag, attributes in found.tags
        for key, value in attributes.items()
        if key in ("src", "href", "data", "poster", "srcset", "action")
        and not value.startswith(("#", "data:,"))
    ]
    assert fetched == []
    policy = next(
        attributes["content"] for tag, attributes in found.tags if "http-equiv" in attributes
    )
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-eval" not in policy


def test_a_kernel_named_like_an_image_stays_text(pages):
    found = Tags(pages["gpu"].read_text("utf-8"))
    assert not [tag for tag, _ in found.tags if tag in ("img", "iframe", "object")]
    assert EVIL in found.text


def cells(page, section, first):
    """Return the rows of a section's tables whose first cell matches."""
    text = (
        page.read_text("utf-8").partition(f'<section id="{section}"')[2].partition("</section>")[0]
    )
    text = re.sub(r"</?a[^>]*>", "", text)
    rows = (re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", text))
    return [row for row in rows if row and re.fullmatch(first, row[0])]


def test_tables_hold_the_numbers(pages):
    """A pipeline step has 4 x 86 ms of passes (80 before), 86 ms of bubble and 7 ns of adamw."""
    assert [row[:5] for row in cells(pages["run"], "ranks", r"\d · dp\d pp\d")] == [
        [f"{rank} · dp{rank // 2} pp{rank % 2}", f"host-{rank // 2}", "430.000", "344.000", "0.000"]
        for rank in range(4)
    ]
    assert cells(pages["run"], "operators", "matmul") == [
        ["matmul", "8", "344.000", "344.000", "43.000", "50.000", "100.0%"]
    ]
    assert cells(pages["run"], "change", "matmul") == [
        [
            *("matmul", "", "8", "8", "0", "0.0%", "0"),
            *["320.000", "344.000", "▲ +24.000", "▲ +7.5%", "0.000"] * 2,
        ]
    ]
    assert cells(pages["run"], "change", "Tokens/s") == [
        ["Tokens/s", "2,560", "2,560", "0", "0.0%"]
    ]


def test_tables_of_a_gpu_hold_the_numbers(pages):
    """In each step a matmul of 12 us and its gradient of 26, with kernels of 30 and 19."""
    assert cells(pages["gpu"], "operators", "matmul.*") == [
        ["matmul", "1", *["0.012"] * 4, "31.6%", *["0.030"] * 4, "61.2%"],
        ["matmul_grad", "1", *["0.026"] * 4, "68.4%", *["0.019"] * 4, "38.8%"],
    ]
    assert cells(pages["gpu"], "kernels", ".*") == [
        ["&lt;img src=x onerror=alert(1)&gt;", "1", "0.030", "0.030", "0.030", "61.2%"],
        ["gemm_grad", "1", "0.019", "0.019", "0.019", "38.8%"],
    ]
    assert cells(pages["gpu"], "memory", "matmul") == [["matmul", "3", "9 MiB", "3 MiB"]]
    assert cells(pages["gpu"], "memory", "0") == [
        ["0", "Place(gpu:0)", "3 MiB", "ProfileStep#0 › Forward › matmul"]
    ]


def report_chart_data(run):
    report = collect_report_data(open_run(run))
    return charts.chart_data(report, None, Links(report))


def test_the_roofline_has_the_numbers(runs, pages):
    """A product of 2 x 512 x 512 x 1024 FLOPs and 2.5 MiB in 30 us, 989.5 TFLOP/s at best."""
    flops, size = 2 * 512 * 512 * 1024, 2 * 512 * (512 + 1024 + 1024)
    data = report_chart_data(runs["gpu"])["roofline"]
    (family,) = data["families"]
    (point,) = family["points"]
    assert family["term"] == "family_product"
    assert point[:3] == pytest.approx([flops / size, flops / 30e-6, 0.03])
    assert point[3] == "matmul [512,512] [512,1024] bfloat16"
    assert (data["bytes_per_s"], data["peaks"]) == (3350e9, {"bfloat16": 989.5e12})
    least_ms = max(flops / 989.5e12, size / 3350e9) * 1e3
    assert cells(pages["gpu"], "efficiency", "matmul") == [
        [
            *("matmul", "[512,512] [512,1024]", "bfloat16", "1", "0.030"),
            *("17.9", f"{size / 30e-6 / 1e9:.2f}", f"{flops / size:.0f}"),
            *("bfloat16", f"{least_ms / 0.03:.1%}", "launch", f"{0.03 - least_ms:.3f}"),
        ]
    ]
    assert "no operator with recorded shapes" in pages["run"].read_text("utf-8")


@pytest.mark.parametrize(("reserved", "is_noted"), [(2 << 20, True), (4 << 20, False)])
def test_fewer_reserved_than_allocated_bytes_are_not_drawn_without_a_word(
    tmp_path, reserved, is_noted
):
    inside = [reserve(5_000, reserved), alloc(6_000, 3 << 20), free(8_000, 3 << 20)]
    step = span("ProfileStep", "ProfileStep#0", 0, 10_000).around(*inside)
    trace = write(tmp_path / "rank_0.pb", Thread(1, "main", (step,)))
    page = page_of(tmp_path, "memory", trace).read_text("utf-8")
    assert ("For Place(gpu:0), Paddle counted fewer reserved" in page) == is_noted


@pytest.mark.parametrize("language", LANGUAGES)
def test_languages_have_the_same_texts(language):
    texts = {name: Words.in_language(name).texts for name in ("en", language)}

    def fields(text):
        return sorted(name for _, name, _, _ in string.Formatter().parse(text) if name)

    one, other = texts["en"], texts[language]
    assert {group: set(entries) for group, entries in one.items()} == {
        group: set(entries) for group, entries in other.items()
    }
    for group in ("page", "about", "sections", "reasons", "verdicts"):
        assert {key: fields(text) for key, text in one[group].items()} == {
            key: fields(text) for key, text in other[group].items()
        }
    assert all(
        len(pair) == 2 and all(pair)
        for groups in texts.values()
        for pair in groups["terms"].values()
    )


def test_communication_is_drawn_by_the_axis(runs):
    found = collect_report_data(open_run(runs["run"]))
    steps = found.cluster.steps
    drawn = charts._communication(found, Links(found))
    assert drawn["axes"] == ["pp"]
    for part in ("exposed", "hidden"):
        assert drawn[f"{part}_ms"] == pytest.approx([steps[f"{part}_pp_ns"].mean() / 1e6])


def introductions(path, *, ranks="all", language="en"):
    """The introductions of the sections that show ranks along one axis of time."""
    found = collect_report_data(open_run(path), ranks=ranks)
    shown, _ = sections(found, Words.in_language(language), Links(found))
    return [section.about for section in shown if section.key in ("pipeline", "timeline")]


@pytest.mark.parametrize(
    ("language", "unknown"),
    [("en", "The clocks of ranks 0-3 are unknown"), ("zh", "rank 0-3 的时钟未知")],
)
def test_ranks_without_clocks_are_not_on_one_clock(runs, language, unknown):
    """Nothing that these four ranks recorded bounds the differences of their clocks."""
    texts = introductions(runs["run"], language=language)
    assert [unknown in text for text in texts] == [True, True]
    assert not [text for text in texts if "one clock" in text or "同一时钟" in text]


def test_one_rank_or_ranks_with_clocks_are_on_one_clock(runs):
    alone = introductions(runs["run"], ranks=3)
    together = introductions(COMMITTED / "slow_rank_and_link")
    assert (len(alone), len(together)) == (2, 2)
    assert all("All times are on one clock." in text for text in alone + together)


def test_a_large_group_is_shown_by_its_ends():
    assert _members("0,1,2,3,4,5,6,7") == "0,1,2,3,4,5,6,7"
    assert _members("0,1,2,3,4,5,6,7,9") == "0, 1, 2, 3, 4, 5 … 9"


def test_a_group_of_no_axis_is_shown_with_a_question_mark():
    found = collect_report_data(open_run(COMMITTED / "slow_rank_of_two"))
    groups = found.cluster.groups.with_columns(axis=pl.lit(None, pl.String))
    cluster = SimpleNamespace(steps=found.cluster.steps, groups=groups)
    english = Words.in_language("en")
    report = SimpleNamespace(cluster=cluster, typical_cluster=cluster, ranks=found.ranks)
    _, blocks = _communication(report, english, Links(found))
    assert groups.height
    assert [row[1].text for row in blocks[1].rows] == ["?"] * groups.height


def test_a_changed_operator_without_device_time_is_in_the_comparison(tmp_path, cli):
    """The table is sorted by the time on the device, which is 0 in all of its rows."""

    def run(name, *more):
        steps = [
            span("ProfileStep", f"ProfileStep#{n}", 1000 * n, 1000 * n + 900).around(
                span("Operator", "matmul", 1000 * n + 10, 1000 * n + 100).around(
                    launch(
                        1000 * n + 20, 1000 * n + 30, kernel("gemm", 1000 * n + 40, 1000 * n + 90)
                    )
                ),
                *(span("Operator", extra, 1000 * n + 200, 1000 * n + 300) for extra in more),
            )
            for n in range(3)
        ]
        return write(tmp_path / f"{name}.pb", Thread(1, "main", tuple(steps)), devices=(0,))

    base, path = run("base", "on the host"), tmp_path / "page.html"
    cli("report", run("run"), "--baseline", base, "-o", path)
    _, _, table = path.read_text("utf-8").partition('data-table="change_operators"')
    cells = re.findall(r"<td[^>]*>(.*?)</td>", table.partition("</table>")[0])
    assert cells[:2] == ["on the host", "gone"]


def test_differences_that_are_left_out_are_counted(tmp_path, cli):
    path = tmp_path / "page.html"
    times = [step_lines(20e6)]
    base = of_job(
        tmp_path / "base",
        (),
        step_lines=times,
        config={"a": dict.fromkeys(string.ascii_lowercase, 1)},
    )
    other = of_job(
        tmp_path / "other",
        (),
        step_lines=times,
        config={"a": dict.fromkeys(string.ascii_lowercase, 2)},
    )
    cli("report", other, "--baseline", base, "-o", path)
    text = path.read_text("utf-8")
    shown = sum(f"a.{letter}: 1 -&gt;" in text for letter in string.ascii_lowercase)
    assert f"And {len(string.ascii_lowercase) - shown} more differences" in text


def test_the_steps_of_a_comparison_have_the_basis_of_either_run(tmp_path, cli):
    path = tmp_path / "page.html"
    base = of_job(tmp_path / "base", (), step_lines=[step_lines(20e6)])
    cli("report", write(tmp_path / "trace.pb", *training()), "--baseline", base, "-o", path)
    assert "Times of steps (without a window, recorded), for both runs." in path.read_text("utf-8")


def test_an_unknown_language_is_refused(runs):
    with pytest.raises(UsageError, match="language 'fr': expected one of en, zh"):
        render(collect_report_data(ppprof.open(runs["gpu"])), "fr")


def test_all_problems_of_the_command_line_are_reported_at_once(runs, cli, tmp_path):
    taken = tmp_path / "taken.html"
    taken.write_text("mine")
    asked = ["report", str(runs["gpu"]), "--window", "x", "--steps", "y", "--workers", "0"]
    assert cli(*asked, "-o", taken, code=2).err.splitlines() == [
        "--window: 'x': expected a whole number from 0",
        "--steps: steps 'y': expected A:B (steps A to B-1), A:, :B or one number, from 0",
        "--workers: '0': expected a whole number from 1",
        f"-o {taken}: exists; --force replaces it",
    ]
    assert taken.read_text() == "mine"


def test_a_page_without_a_name_is_the_next_free_one(runs, cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for options, page in (
        ((), "report.html"),
        ((), "report_2.html"),
        (("--force",), "report.html"),
        ((), "report_3.html"),
    ):
        assert cli("report", str(runs["timer"]), *options).err == f"{page}: open it in a browser\n"
        assert (tmp_path / page).stat().st_size > 10_000


@pytest.mark.all
def test_the_page_of_many_ranks_holds_a_part_of_their_events(tmp_path, cli, monkeypatch):
    """64 ranks with 2.8 million events."""
    monkeypatch.setattr(cluster_job, "NUM_STEPS", 6)
    cluster_job.make(tmp_path / "run", 64)
    cli("report", tmp_path / "run", "-o", tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size <= 15e6


def shown_ranks(report, key):
    """The ranks in the first column of a table of the page."""
    shown, _ = sections(report, Words.in_language("en"), Links(report))
    (table,) = (
        block for section in shown for block in section.blocks if getattr(block, "key", "") == key
    )
    return [row[0].order for row in table.rows], table.left_out


def test_of_too_many_ranks_the_slow_ones_stay_in_the_table(tmp_path, monkeypatch):
    """Rank 6 is slow; of its equal peers, the first three are shown."""
    peers = ",".join(map(str, range(8)))
    threads = [computing(900 if rank == 6 else 500, peers=peers) for rank in range(8)]
    found = collect_report_data(open_run(of_job(tmp_path / "run", threads)))
    monkeypatch.setattr(blocks, "MAX_ROWS", 4)
    assert shown_ranks(found, "ranks") == ([0, 1, 2, 6], 4)


def test_of_too_many_ranks_the_longest_steps_stay_in_the_table(tmp_path):
    """301 ranks without traces, as many as a table shows and one more; rank 1 is the fastest."""
    lines = [step_lines(19e6 if rank == 1 else 20e6, steps=4) for rank in range(301)]
    found = collect_report_data(open_run(of_job(tmp_path / "run", (), step_lines=lines)))
    assert shown_ranks(found, "ranks") == ([0, *range(2, 301)], 1)


def test_of_too_many_ranks_the_most_idle_devices_stay_in_the_table(tmp_path, monkeypatch):
    """Each device works once a step; those of ranks 1 and 2 for the shortest times."""
    threads = [
        Thread(
            1,
            "main",
            tuple(
                span("ProfileStep", f"ProfileStep#{n}", start, start + 1_000_000).around(
                    launch(start, start + 999, kernel("gemm", start + 2_000, start + 2_000 + busy))
                )
                for n, start in enumerate((0, 1_000_000, 2_000_000))
            ),
        )
        for busy in (900_000, 800_000, 100_000, 850_000)
    ]
    found = collect_report_data(open_run(of_job(tmp_path / "run", threads)))
    monkeypatch.setattr(blocks, "MAX_ROWS", 2)
    assert shown_ranks(found, "queue") == ([1, 2], 2)


def test_the_page_lists_unreadable_traces(runs, tmp_path, capsys):
    path = pipeline(tmp_path / "run")
    broken = next(path.glob("raw/rank_00002*"))
    broken.write_bytes(b"nothing of the kind")
    page = page_of(tmp_path, "broken", path)
    said = capsys.readouterr().err
    assert broken.name in said
    unread = page.read_text("utf-8").partition('<section id="unread"')[2]
    assert broken.name in unread.partition("</section>")[0]
    for other in path.glob("raw/*"):
        other.write_bytes(b"")
    with pytest.raises(InputError):
        collect_report_data(ppprof.open(path))


def test_ranks_and_steps_can_be_chosen(runs):
    found = collect_report_data(ppprof.open(runs["run"]), ranks={"pp": 1}, steps="1:")
    assert (found.ranks, found.steps, sorted(found.details)) == ([1, 3], [1, 2], [1, 3])
    assert sorted(set(found.step_times["rank"])) == [1, 3]
    with pytest.raises(UsageError, match="no step of 7"):
        collect_report_data(ppprof.open(runs["run"]), steps="7")


def test_training_on_two_gpus_is_drawn_stream_by_stream(tmp_path):
    tmp_path.joinpath("a").mkdir()
    found = collect_report_data(ppprof.open(write(tmp_path / "a" / "rank_0.pb", *training())))
    streams = {(track.device, track.stream) for track in found.details[0].timeline.tracks}
    assert {(0, 7), (1, 20)} <= streams


# Behaviour of the page, in Chromium.


class TestInChromium:
    pytestmark = in_browser

    @pytest.mark.parametrize(
        ("name", "scheme"),
        [
            pytest.param("run", "light", marks=pytest.mark.jobs),
            *[("run", "dark"), ("zh", "light"), ("zh", "dark"), ("gpu", "light"), ("gpu", "dark")],
        ],
    )
    def test_every_chart_is_drawn(self, opened, name, scheme):
        found = opened(name, color_scheme=scheme)
        found.draw_all()
        colours = found.colours()
        assert colours
        assert min(colours.values()) > 4, colours
        assert found.page.evaluate("document.documentElement.dataset.theme") == scheme

    def test_every_section_has_content(self, opened):
        found = opened("run")
        empty = found.page.evaluate(
            """[...document.querySelectorAll("main > section")]
                .filter(at => !at.querySelector("table, figure, dl, p")).map(at => at.id)"""
        )
        assert empty == []
        titles = found.page.eval_on_selector_all("h2", "all => all.map(at => at.textContent)")
        assert titles == [
            *("Change from the baseline", "What to do"),
            *words("Pipeline Steps Ranks Communication Modules Operators Timeline Definitions"),
        ]

    def test_a_click_on_a_header_sorts(self, opened):
        page = opened("run").page
        ranks = page.locator("#ranks figure.table")
        head = ranks.locator("th", has_text="Rank").first
        first = ranks.locator("tbody tr td:first-child")
        assert head.get_attribute("aria-sort") == "ascending"
        head.get_by_role("button").click()
        assert head.get_attribute("aria-sort") == "descending"
        assert [text[0] for text in first.all_inner_texts()] == ["3", "2", "1", "0"]
        head.get_by_role("button").press("Enter")
        assert head.get_attribute("aria-sort") == "ascending"
        assert [text[0] for text in first.all_inner_texts()] == ["0", "1", "2", "3"]

    def test_numbers_sort_by_their_value_largest_first(self, opened):
        page = opened("gpu").page
        kernels = page.locator("#kernels figure.table")
        for name, order in (
            ("Calls", [EVIL, "gemm_grad"]),  # of equal calls the order stays
            ("GPU total", [EVIL, "gemm_grad"]),
            ("GPU total", ["gemm_grad", EVIL]),
        ):
            kernels.get_by_role("button", name=name).click()
            assert kernels.locator("tbody tr td:first-child").all_inner_texts() == order

    def test_a_search_leaves_what_matches(self, opened):
        page = opened("run").page
        table = page.locator("#change figure.table", has=page.locator("input[type=search]")).first
        table.locator("input").fill("step")
        shown = table.locator("tbody tr:visible td:first-child").all_inner_texts()
        assert shown == ["Mean step", "Median step"]
        assert re.fullmatch(r"2 of \d+ rows", table.locator(".count").inner_text())
        table.locator("input").fill("")
        assert table.locator("tbody tr:visible").count() > 2

    def test_a_number_shows_its_definition(self, opened):
        page = opened("run").page
        tip = page.locator("#tip")
        page.locator("#headline .term", has_text="Bubble").first.focus()
        assert "A pipeline stage waits for others" in tip.inner_text()
        page.keyboard.press("Escape")
        assert not tip.is_visible()
        page.locator("#ranks tbody td").nth(3).hover()
        assert "waits for no other rank" in tip.inner_text()

    def test_tab_goes_through_the_page_in_order(self, opened):
        found = opened("gpu")
        found.draw_all()
        page, seen = found.page, []
        page.evaluate("scrollTo(0, 0)")
        for _ in range(400):
            page.keyboard.press("Tab")
            at = page.evaluate(
                """() => { const at = document.activeElement;
                    if (at === document.body) return null;
                    const all = [...document.querySelectorAll("*")];
                    return [all.indexOf(at), at.tagName, at.className || at.id, at.tabIndex]; }"""
            )
            if at is None:
                break
            seen.append(at)
        order = [element[0] for element in seen]
        assert order == sorted(set(order))
        assert seen[0][2] == "skip"
        assert {"BUTTON", "A", "CANVAS", "SPAN", "SELECT"} <= {element[1] for element in seen}
        assert max(element[3] for element in seen) == 0

    def test_spans_can_be_walked_with_the_keyboard(self, opened):
        found = opened("run")
        found.draw_all()
        figure = found.page.locator('figure[data-chart="pipeline"]')
        canvas, live = figure.locator("canvas"), figure.locator(".live")
        canvas.focus()
        said = []
        for key in (">", ">", "ArrowDown", "ArrowDown", "<", ">"):
            found.page.keyboard.press(key)
            said.append(live.inner_text().split(": ", 1)[1].split(" · ")[0])
        # Rows: ranks 0 and 2, of stage 0, then 1, of stage 1, which first waits for stage 0.
        # A row down: what had begun last at the middle of the span.
        assert said == ["F0", "F1", "F1", "F0", "Bubble", "F0"]
        before = found.page.evaluate("f => [f.lanes.from, f.lanes.to]", figure.element_handle())
        found.page.keyboard.press("+")
        after = found.page.evaluate("f => [f.lanes.from, f.lanes.to]", figure.element_handle())
        assert after[1] - after[0] < before[1] - before[0]
        found.page.keyboard.press("Home")
        assert found.page.evaluate("f => f.lanes.from", figure.element_handle()) == 0

    def test_hovering_a_span_shows_its_name_and_length(self, opened):
        found = opened("run")
        found.draw_all()
        canvas = found.page.locator('figure[data-chart="pipeline"] canvas')
        canvas.hover(position={"x": 160, "y": 24 + 9})
        assert found.page.locator("#tip").inner_text() == "F0\nForward · 36 ms"

    def test_ranks_are_grouped_by_an_axis(self, opened):
        found = opened("run")
        found.draw_all()
        figure = found.page.locator('figure[data-chart="heat"]')
        figure.locator("select").nth(1).select_option("pp")
        found.page.wait_for_timeout(100)
        labels = found.page.evaluate(
            """f => echarts.getInstanceByDom(f.querySelector(".drawing")).getOption().yAxis[0].data""",
            figure.element_handle(),
        )
        assert labels == ["pp0", "pp1"]

    def test_the_theme_button_switches_light_and_dark(self, opened):
        page = opened("run", color_scheme="light").page
        page.locator("#theme").press("Enter")
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"
        assert page.locator("#theme").get_attribute("aria-pressed") == "true"

    def test_an_intruding_script_does_not_run(self, opened, folder, pages):
        """The page's policy blocks scripts even if a name became markup."""
        text = (
            pages["gpu"].read_text("utf-8").replace("<main", "<img src=x onerror=alert(1)><main", 1)
        )
        path = folder / "intruded.html"
        path.write_text(text, "utf-8")
        pages["intruded"] = path
        found = opened("intruded")
        assert not [said for said in found.complaints if said.startswith("dialog")]
        assert any("Content Security Policy" in said for said in found.complaints)
        found.complaints.clear()
        found.requests.clear()
