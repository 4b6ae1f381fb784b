"""Numbers of the page: each has one text wherever it stands, fits its place, and prints."""

from __future__ import annotations

import json
import random
import re
import shutil
from dataclasses import replace
from importlib.resources import files
from itertools import accumulate
from pathlib import Path

import polars as pl
import pytest
import yaml

from ppprof.analysis.report_data.report import ReportData
from ppprof.cli import main
from ppprof.messages import Counted
from ppprof.report.html.blocks import Block, Gains, Note, PlacedChanges, Shares, Tiles, Words
from ppprof.report.html.links import Links
from ppprof.report.html.sections import efficiency, head, key_figures, sections
from ppprof.run.report import collect_report_data
from ppprof.run.run import open as open_run
from ppprof.topology import Topology
from ppprof.units import format_bytes, format_ratio, format_time
from tests.fixtures.findings import computing
from tests.fixtures.run_directories import run
from tests.fixtures.timeline import Thread, span, write
from tests.fixtures.timeline_view import T, View
from tests.jobs.planted import COMMITTED
from tests.report.runs_and_pages import TORCH, gpu, in_browser, page_of, timer_only

KINETO = Path(__file__).parents[1] / "fixtures/kineto"
SEVERAL = (
    *("healthy", "loader", "slow rank", "bubble", "torch", "layer", "timer", "unmarked"),
    *("many", "device", "eight", "late"),
)
PAPER = 182 / 25.4 * 96
"""Width of A4 without the page's margins, in CSS pixels."""

TEXTS = """chart => echarts.getInstanceByDom(document.querySelector(
        `figure[data-chart="${chart}"] .drawing`)).getZr().storage.getDisplayList()
    .filter(item => item.style.text && !item.ignore && !item.invisible).map(item => {
        const shape = item.getBoundingRect().clone();
        shape.applyTransform(item.getComputedTransform() || [1, 0, 0, 1, 0, 0]);
        return [String(item.style.text), shape.x, shape.y, shape.width, shape.height];
    })"""
"""A script that returns each text of a chart with its box: x, y, width, height."""

DRAWN_STEPS = f"""async row => {{
    const {{ store }} = {T};
    const found = [];
    for (const chunk of store.ranks[row].tracks.flatMap(track => track.chunks)) {{
        const events = await store.wait(chunk);
        for (let at = chunk.repeated; at < events.num; at++) {{
            const name = store.ranks[row].signatures.name[events.sig[at]];
            if (/^Profiler?Step#/.test(name)) found.push([name, events.start[at], events.dur[at]]);
        }}
    }}
    return found;
}}"""
"""A script that returns name, start and length of the timeline's steps of one rank."""


def many_steps(folder: Path) -> Path:
    """The times of 36 steps of four ranks above 2 s, without traces; one step is a little longer."""
    path = timer_only(folder)
    for rank in range(4):
        lines = [
            json.dumps(
                {
                    **{"step": step, "window": None, "reader_cost_ns": 1_000_000},
                    "batch_cost_ns": 2_123_077_474 + (step == 9) * 1_234_567,
                }
            )
            for step in range(36)
        ]
        (path / "steps" / f"rank_{rank:05d}.jsonl").write_text("\n".join(lines) + "\n")
    return path


def mixed(folder: Path) -> Path:
    """Traces of torch, of ranks with and without a GPU."""
    folder.mkdir()
    for path in [*KINETO.glob("*.json"), *KINETO.glob("*.json.gz")]:
        if "key_averages" not in path.name:
            shutil.copy(path, folder)
    return folder


def many_ranks(folder: Path) -> Path:
    """64 ranks, of which rank 5 computes for 400 us longer than the others."""
    peers = ",".join(map(str, range(64)))
    threads = [computing(900 if rank == 5 else 500, peers=peers) for rank in range(64)]
    return run(folder, threads, topology=Topology.of(dp=64))


def unmarked(folder: Path) -> Path:
    """A trace without marks of steps."""
    layers = [
        span("Forward", "GPT", 0, 4_000_000),
        span("Backward", "Backward", 5_000_000, 9_000_000),
    ]
    return write(folder, Thread(1, "main", tuple(layers)))


@pytest.fixture(scope="module")
def several(runs, folder):
    """Runs of ten kinds, by name."""
    return {
        "healthy": COMMITTED / "nothing",
        "loader": COMMITTED / "slow_dataset",
        "slow rank": COMMITTED / "slow_rank_and_link",
        "bubble": COMMITTED / "one_micro_batch",
        "torch": TORCH,
        "layer": COMMITTED / "slow_layer",  # its page has a comparison
        "timer": runs["timer"],
        "unmarked": unmarked(folder / "unmarked.pb"),
        "many": many_ranks(folder / "many"),
        "device": COMMITTED / "two_ranks_on_a_device",
        "eight": COMMITTED / "eight_ranks",
        "late": COMMITTED / "slow_rank_of_two",
    }


@pytest.fixture(scope="module")
def pages(pages, folder, several):
    every = {
        name: page_of(folder, name, path) for name, path in several.items() if name not in pages
    }
    return {
        **every,
        **pages,
        "long": page_of(folder, "long", many_steps(folder / "long")),
        "mixed": page_of(folder, "mixed", mixed(folder / "mixed")),
    }


@pytest.fixture(scope="module", params=["mixed", "nothing", "eight_ranks", "slow_rank_of_two"])
def report(request, tmp_path_factory) -> ReportData:
    path = COMMITTED / request.param
    if request.param == "mixed":
        path = mixed(tmp_path_factory.mktemp("torch") / "mixed")
    return collect_report_data(open_run(path))


def shown_steps(text: str) -> set[str]:
    """The step times that a title, finding or label names."""
    return set(re.findall(r"(?:of a|step of) ([\d.,]+ \w+)(?: step)?", text))


def texts_of(cell: str) -> set[str]:
    """The texts of a time whose milliseconds a table shows with three decimals."""
    time_ms = float(cell.replace(",", ""))
    return {format_time((time_ms + half) * 1e6) for half in (-0.0005, 0, 0.0005)}


def top_blocks(report: ReportData, kind: type[Block]) -> list[Block]:
    """The blocks of one kind at the top of the page."""
    figures = key_figures(report, Words.in_language("en"), Links(report))
    return [block for block in figures if isinstance(block, kind)]


@pytest.mark.parametrize(
    ("language", "one_core"), [("en", "100% is one core"), ("zh", "100% 表示一个核")]
)
def test_the_use_of_the_cpu_is_in_cores(runs, language, one_core):
    """The recorder measured 1.371429: more than one core."""
    words, report = Words.in_language(language), collect_report_data(open_run(runs["gpu"]))
    (tiles,) = (
        block for block in key_figures(report, words, Links(report)) if isinstance(block, Tiles)
    )
    (use,) = (tile.text for tile in tiles.tiles if tile.term == "cpu_utilization")
    assert use == "137.1%"
    assert one_core in words.texts["terms"]["cpu_utilization"][1]


def test_parts_of_a_step_add_up(report):
    """Also where only some ranks know a part: they are means over the same ranks and steps."""
    (bar,) = top_blocks(report, Shares)
    assert sum(share.ratio for share in bar.shares) == pytest.approx(1, abs=0.004)
    assert all(0 <= share.ratio <= 1 for share in bar.shares)


def test_what_findings_cost_adds_up_to_the_step(report):
    """Slow steps are no part of the typical step; one finding alone is the title's."""
    costs = [
        (finding.cost_ns, finding.share)
        for finding in report.findings
        if finding.cost_ns is not None and finding.rule != "slow-steps"
    ]
    gains = [gain for bar in top_blocks(report, Gains) for gain in bar.gains]
    assert bool(gains) == (len(costs) > 1)
    if gains:
        *named, rest = gains
        assert [(gain.text, gain.ratio) for gain in named] == [
            (format_time(cost_ns), share) for cost_ns, share in costs
        ]
        assert 0 <= rest.ratio == pytest.approx(1 - sum(share for _, share in costs))


def test_a_finding_names_the_step_of_the_bar(report):
    """Recorded steps have one time: that of the bar, the mean of all ranks."""
    (bar,) = top_blocks(report, Shares)
    (step,) = shown_steps(bar.label)
    steps = {
        format_time(finding.facts["step_ns"])
        for finding in report.findings
        if finding.facts.get("basis") == "recorded" and finding.rule != "slow-steps"
    }
    assert steps <= {step}


def test_a_step_is_drawn_for_each_rank_on_one_axis_of_time(report):
    """Each part has its time of that step, but for what a slice rounds; the lanes are equally long."""
    (bar,) = top_blocks(report, Shares)
    lengths = {sum(length for _, length in lane.pieces) for lane in bar.lanes}
    number = int(re.search(r"Step (\d+)", bar.about_lanes).group(1))
    steps = report.cluster.steps.filter(step=number)
    assert len(bar.lanes) == steps.height
    assert max(steps["step_ns"]) <= max(lengths)
    assert len(lengths) == 1
    for lane, row in zip(bar.lanes, steps.sort("rank").rows(named=True)):
        drawn = sum(length for part, length in lane.pieces if part == "computation")
        pieces = sum(part == "computation" for part, _ in lane.pieces)
        assert lane.label.split(" · ")[0] == str(row["rank"])
        length_ns = sum(length for part, length in lane.pieces if part)
        assert length_ns == pytest.approx(row["step_ns"], rel=1e-6)  # clocks drift
        assert abs(drawn - row["computation_ns"]) <= row["step_ns"] * (pieces + 60) / 240


def test_a_pause_leaves_a_gap_in_the_drawn_step(report):
    """What follows a pause, of which there are no slices, stays where it was."""
    slices = [
        table.filter(pl.int_range(pl.len()).over("step") != 1) for table in report.cluster.slices
    ]
    paused = replace(report, cluster=replace(report.cluster, slices=slices))
    (bar,) = top_blocks(paused, Shares)
    number = int(re.search(r"Step (\d+)", bar.about_lanes).group(1))
    of_step = [table for table in (every.filter(step=number) for every in slices) if table.height]
    assert len(bar.lanes) == len(of_step)
    for lane, table in zip(bar.lanes, of_step):
        starts = accumulate((length for _, length in lane.pieces), initial=0)
        drawn = [start for start, (part, _) in zip(starts, lane.pieces) if part]
        recorded = table["start_ns"].to_list()
        assert len(drawn) == len(recorded) > 1
        for start, start_ns in zip(drawn, recorded):  # clocks drift
            assert start - drawn[0] == pytest.approx(start_ns - recorded[0], rel=1e-6)


def test_the_biggest_changes_have_their_places_in_both_runs():
    """40 ms of sleep in the second block: where the block ends in each run, `ppprof diff` has, too."""
    baseline, experiment = (open_run(COMMITTED / name) for name in ("nothing", "slow_layer"))
    compared = collect_report_data(experiment, baseline=baseline)
    (block,) = top_blocks(compared, PlacedChanges)
    (change,) = block.changes  # the others are below 1% of a step
    assert (change.title, change.cell.mark) == ("GPT > Block 2", "worse")
    assert change.cell.href.startswith("#")
    modules = compared.diff.modules
    row = modules.filter(name="Block").row(1, named=True)
    step = modules.row(0, named=True)
    assert row["delta_self_ns"] == pytest.approx(40e6, rel=0.02)
    for lane, side in zip(change.lanes, ("baseline", "experiment")):
        (_, before), (part, length), (_, behind) = lane.pieces
        assert part == side
        assert before + length == pytest.approx(row[f"{side}_until_ns"], abs=2)
        assert length == pytest.approx(row[f"{side}_self_ns"], abs=2)
        assert before + length + behind == pytest.approx(step["experiment_time_ns"], rel=0.01)
    assert top_blocks(collect_report_data(experiment), PlacedChanges) == []


def test_each_step_time_is_named_at_the_top(report):
    """The title, the card and the bar name step times; the first sentence says what each is."""
    words = Words.in_language("en")
    (basis,), (tiles,), (bar,) = (top_blocks(report, kind) for kind in (Note, Tiles, Shares))
    named = set(re.findall(r"(?:^A step takes|(?<=\.)) ([\d.,]+ \w+):", basis.text))
    card = next(tile.text for tile in tiles.tiles if tile.term == "step_time")
    title = head(report, words, Links(report))["title"][0]
    assert basis.text.startswith(f"A step takes {card}: ")
    assert shown_steps(title) | shown_steps(bar.label) | {card} == named


def test_a_trace_without_marks_of_steps_says_so_at_the_top(tmp_path):
    layers = [
        span("Forward", "GPT", 0, 4_000_000),
        span("Backward", "Backward", 5_000_000, 9_000_000),
    ]
    trace = write(tmp_path / "rank_0.pb", Thread(1, "main", tuple(layers)))
    basis, *_ = top_blocks(collect_report_data(open_run(trace)), Note)
    assert basis.text == "A step takes 9 ms: the whole trace, which has no marks of steps, rank 0."


def test_step_times_alone_are_not_called_healthy(tmp_path):
    """They name few causes: the title says so, and proposes a window."""
    report = collect_report_data(open_run(many_steps(tmp_path / "long")))
    shown = head(report, Words.in_language("en"), Links(report))
    assert shown["title"] == ("This run has step times only (timer_only).", "")
    assert shown["do"].startswith("Record a window of steps (Profiler.scheduler)")
    basis, *_ = top_blocks(report, Note)
    assert basis.text == "A step takes 2.12 s: mean of 26 steps without a window, ranks 0-3."


def test_shapes_of_a_hundred_inputs_are_cut(tmp_path):
    report = collect_report_data(open_run(gpu(tmp_path / "gpu")))
    many = " ".join(["[64,64]"] * 100)
    table = report.efficiency.with_columns(shapes=pl.lit(many))
    _, (_, shown) = efficiency(
        replace(report, efficiency=table), Words.in_language("en"), Links(report)
    )
    assert {len(row[1].text) for row in shown.rows} == {64}
    assert {row[1].order for row in shown.rows} == {many}  # sorted, searched and shown on hover


def test_sections_come_in_the_order_in_which_findings_name_them():
    report = collect_report_data(open_run(COMMITTED / "one_micro_batch"))
    costs = [finding.rule for finding in report.findings[:2]]
    assert costs == ["pipeline-bubble", "exposed-communication"]
    made, _ = sections(report, Words.in_language("en"), Links(report))
    assert [section.key for section in made][:4] == [
        "findings",
        "pipeline",
        "communication",
        "steps",
    ]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_numbers_agree_with_their_nouns(language):
    """No text of the page puts a plural after a number that can be 1."""
    source = files("ppprof.report").joinpath(f"texts/{language}.yaml").read_text("utf-8")
    _, page = yaml.safe_load_all(source)
    texts = {
        f"{group}.{name}": text
        for group, names in page.items()
        for name, text in names.items()
        if isinstance(text, str) and "{" in text
    }
    wrong = [name for name, text in texts.items() if re.search(r"\{num\w*\} [a-z]", text)]
    assert wrong == []
    words = Words.in_language(language)
    ones = [
        words(f"page.{key}", **dict.fromkeys(("num", "shown", "all", "version"), 1))
        for key in ("rows_of", "made_by", "left_out", "copied")
    ]
    assert [text for text in ones if re.search(r"\b1 \w+s\b", text)] == []


def test_a_noun_after_an_unknown_number_is_a_plural():
    assert "{n:row|rows}".format(n=Counted("-")) == "- rows"


class TestInChromium:
    pytestmark = in_browser

    def test_scripts_write_numbers_as_python_does(self, opened):
        page = opened("healthy").page
        rng = random.Random(0)
        values = [0, 1, 999, 999.4, 999.6, 1023, 1024, 999_499, 999_500, 999_949, 1e12]
        values += [rng.uniform(0, 10) * 10 ** rng.randint(0, 12) for _ in range(2000)]
        for script, ours, scale in (("inTime", format_time, 1e6), ("inBytes", format_bytes, 1)):
            theirs = page.evaluate(
                f"([values, scale]) => values.map(value => {script}(value / scale))",
                [values, scale],
            )
            differ = [
                (value, text, ours(value))
                for value, text in zip(values, theirs)
                if text != ours(value)
            ]
            # Half of a last digit is rounded up or down: the two divide in another order.
            assert len(differ) < 4, differ

    @pytest.mark.parametrize("name", ["healthy", "layer", "eight", "gpu", "long", "mixed"])
    def test_a_number_is_the_same_wherever_it_stands(self, opened, name):
        """Read from the page: title, sentence, card, bar, first finding, rows and charts."""
        page = opened(name).page
        title = page.locator("h1").inner_text() + " " + page.locator("header").inner_text()
        basis = page.locator("#headline > p").inner_text()
        cards = dict(
            page.eval_on_selector_all(
                ".tiles div",
                "all => all.map(at => [at.querySelector('dt').textContent.trim(), at.querySelector('dd').firstChild.textContent.trim()])",
            )
        )
        assert basis.startswith(f"A step takes {cards['Mean step']}: ")
        for cost in page.locator(".finding.major, .finding.moderate").all()[:1]:
            text = cost.locator(".about").first.inner_text()
            time, share = re.findall(r"costs ([\d.,]+ \w+) of a step.*?\(([\d.]+%)\)", text)[0]
            assert re.search(rf": {re.escape(time)} of a .*\({re.escape(share)}\)", title)
        bar = page.locator(".parts:not(.gains)")
        if bar.count():
            whole = re.search(r"step of ([\d.,]+ \w+) goes", bar.inner_text())[1]
            assert whole in basis
            shares = [float(text) for text in re.findall(r"([\d.]+)%", bar.inner_text())]
            assert sum(shares) == pytest.approx(100, abs=0.5)
        if page.locator("#change").count():
            row = page.locator("#change tbody tr", has_text="Mean step").first
            assert row.locator("td").nth(2).inner_text() == cards["Mean step"]

    @pytest.mark.parametrize("name", SEVERAL)
    def test_a_finding_says_one_number_in_its_section_the_sum_and_json(
        self, opened, several, name, capsys
    ):
        """Title, sum of the costs, findings and `ppprof advise --format json`, for each finding."""
        page = opened(name).page
        assert main(["advise", str(several[name]), "--format", "json"]) == 0
        entries = json.loads(capsys.readouterr().out)["findings"]
        shown = page.locator("#findings .finding")
        assert shown.count() == len(entries)
        sums = page.locator(".gains li").all_inner_texts()
        for number, entry in enumerate(entries):
            finding = shown.nth(number)
            cost = finding.locator(".about").first.inner_text()
            assert finding.locator("p").first.inner_text() == entry["what"]
            if entry["cost_ns"] is None:
                assert "costs no time" in cost
                continue
            time, share = format_time(entry["cost_ns"]), format_ratio(entry["share"])
            assert f"costs {time} of a step" in cost
            assert f"({share})" in cost
            if entry["alone_ns"] is not None and format_time(entry["alone_ns"]) != time:
                assert f"alone {format_time(entry['alone_ns'])}" in cost
            if sums and entry["rule"] != "slow-steps":
                assert any(line.endswith(f" {time} {share}") for line in sums)

    @pytest.mark.parametrize("name", SEVERAL)
    def test_parts_of_a_step_are_the_same_in_bar_findings_charts_and_tables(self, opened, name):
        page = opened(name).page
        bar = page.locator(".parts:not(.gains)")
        if not bar.count():
            assert name in ("timer",)
            return
        (whole,) = shown_steps(bar.locator("figcaption").inner_text())
        parts = dict(
            page.eval_on_selector_all(
                ".parts:not(.gains) li",
                "all => all.map(at => [at.children[1].textContent.trim(), at.innerText])",
            )
        )
        texts = {}
        for finding in page.locator("#findings .finding").all():
            texts.setdefault(
                finding.locator("h3").inner_text(), finding.locator("p").first.inner_text()
            )
        for title, text in texts.items():
            if "micro-batches" in title:
                time, ratio = re.findall(r"wait ([\d.]+ \w+) of .*? \(([\d.]+%)\)", text)[0]
                assert time in parts["Bubble"]
                assert ratio in parts["Bubble"]
        data = json.loads(page.locator("#data").text_content())
        if data.get("communication"):
            exposed_ms = sum(data["communication"]["exposed_ms"])
            assert format_time(exposed_ms * 1e6) in parts.get("Exposed communication", "0 ns")
        ranks = page.eval_on_selector_all(
            "[data-table=ranks] table tbody tr",
            "all => all.map(row => [...row.cells].map(cell => cell.textContent.trim()))",
        )
        if ranks:
            heads = page.eval_on_selector_all(
                "[data-table=ranks] table thead th",
                "all => all.map(at => at.textContent.trim())",
            )
            column = next(i for i, head in enumerate(heads) if head.startswith("Recorded step"))
            mean = sum(float(row[column].replace(",", "")) for row in ranks) / len(ranks)
            assert whole in texts_of(f"{mean:.3f}")

    @pytest.mark.parametrize("name", ["healthy", "bubble", "eight", "late", "device", "torch"])
    def test_a_step_is_the_same_in_bars_heat_map_and_timeline(self, opened, name):
        """As drawn: the bars of a step, the cells of its column, and its event."""
        found = opened(name)
        found.draw_all()
        bars = found.page.evaluate(
            """() => {
                const {xAxis, series} = echarts.getInstanceByDom(
                    document.querySelector('figure[data-chart="steps"] .drawing')).getOption();
                return [xAxis[0].data, Object.fromEntries(series.map(({name, data}) => [name, data]))];
            }"""
        )
        steps, parts = bars
        exposed = [part for part in parts if part.startswith("Exposed ")]
        heat = found.page.locator('figure[data-chart="heat"]')
        choice = heat.locator("select").first
        means = {}
        for metric in choice.locator("option").all_inner_texts():
            choice.select_option(label=metric)
            cells = heat.evaluate(
                "at => echarts.getInstanceByDom(at.querySelector('.drawing')).getOption().series[0].data"
            )
            ranks = 1 + max(rank for _, rank, _ in cells)
            means[metric] = [
                sum(value for column, _, value in cells if column == step) / ranks
                for step in range(len(steps))
            ]
            if metric == "Step time":
                lengths = {(rank, step): value for step, rank, value in cells}
        whole = [sum(values) for values in zip(*parts.values())]
        assert whole == pytest.approx(means.pop("Step time"), rel=1e-6)
        if exposed:
            over_axes = [sum(values) for values in zip(*(parts.pop(part) for part in exposed))]
            assert over_axes == pytest.approx(means["Exposed communication"], rel=1e-6)
        assert parts.keys() <= means.keys()
        for part, values in parts.items():
            assert values == pytest.approx(means[part], rel=1e-6, abs=1e-6)
        data = json.loads(found.page.locator("#data").text_content())["heat"]
        row, view = len(data["ranks"]) - 1, View(found)
        events = {
            int(name.partition("#")[2]): (start, dur)
            for name, start, dur in view.page.evaluate(DRAWN_STEPS, row)
        }
        assert set(steps) <= events.keys()
        if name != "device":  # where a step ends with its last kernel, after its event
            for column, step in enumerate(steps):
                assert events[step][1] / 1e6 == pytest.approx(lengths[row, column], abs=1e-5)
        found.page.evaluate("href => { location.hash = href; }", data["ranks"][row]["hrefs"][-1])
        view.settle()
        first, last = view.shown
        start, dur = events[steps[-1]]
        assert first <= start < start + 0.999 * dur <= last <= first + 2.01 * dur

    def test_the_card_of_memory_has_the_peak_of_its_chart(self, opened):
        found = opened("gpu")
        found.draw_all()
        card = found.page.locator(".tiles div", has_text="Peak memory").locator("dd")
        peak = card.evaluate("at => at.firstChild.textContent.trim()")
        assert peak in {text for text, *_ in found.page.evaluate(TEXTS, "memory")}

    @pytest.mark.parametrize("name", ["bubble", "eight", "slow rank", "late", "many", "device"])
    def test_evidence_of_groups_and_ranks_is_that_of_their_sections(self, opened, name):
        page = opened(name).page
        rows = "all => all.map(row => [...row.cells].map(cell => cell.textContent.trim()))"
        groups = {
            row[0].replace(" ", ""): [texts_of(text) for text in row[5:7]]
            for row in page.eval_on_selector_all("[data-table=groups] table tbody tr", rows)
        }
        ranks = page.eval_on_selector_all("[data-table=ranks] table tbody tr", rows)
        slow = {re.sub(r"\D.*", "", row[0][2:]): row for row in ranks if row[0].startswith("▲")}
        compared = 0
        for finding in page.locator("#findings .finding").all():
            table = finding.locator("details table")
            heads = table.locator("th").all_text_contents() if table.count() else []
            if "transfer" in heads:
                first = heads.index("wait") if "wait" in heads else heads.index("transfer")
                for row in table.locator("tbody tr").all():
                    cells = row.locator("td").all_text_contents()
                    if cells[0] in groups:
                        for shown, texts in zip(
                            cells[first:], groups[cells[0]][first - len(heads) :]
                        ):
                            assert shown in texts
                            compared += 1
            text = finding.locator("p").first.inner_text()
            if match := re.match(r"Rank (\d+) .*?spends ([\d.]+ \w+) a step", text):
                times = [cell for cell in slow[match[1]] if re.fullmatch(r"\d+\.\d+", cell)]
                assert any(match[2] in texts_of(cell) for cell in times)
                compared += 1
        assert compared or name == "device"

    @pytest.mark.parametrize("name", ["long", "gpu", "eight", "run"])
    def test_ticks_are_short(self, opened, name):
        found = opened(name)
        found.draw_all()
        charts = found.page.eval_on_selector_all(
            'figure[data-drawn-by="chart"], figure[data-drawn-by="memory"]',
            "all => all.map(at => at.dataset.chart)",
        )
        times = []
        for chart in set(charts) - {"roofline"}:
            texts = [text for text, *_ in found.page.evaluate(TEXTS, chart)]
            times += [text for text in texts if re.search(r"\d (s|ms|us|ns)$", text)]
            assert [text for text in texts if re.fullmatch(r"[\d,]+\.\d{4,}", text)] == []
        assert times
        assert all(len(text) <= 10 for text in times), times

    @pytest.mark.parametrize("width", [390, 1440])
    @pytest.mark.parametrize("name", ["long", "timer", "eight", "healthy"])
    def test_numbers_in_cells_do_not_overlap(self, opened, name, width):
        found = opened(name, viewport={"width": width, "height": 900})
        found.draw_all()
        boxes = found.page.evaluate(TEXTS, "heat")
        cells = [box for box in boxes if re.fullmatch(r"[\d.,]+", box[0])]
        assert cells
        for index, (_, x, y, wide, high) in enumerate(cells):
            for _, left, top, width_of_other, height in cells[index + 1 :]:
                apart = (
                    x + wide <= left
                    or left + width_of_other <= x
                    or y + high <= top
                    or top + height <= y
                )
                assert apart

    def test_equal_cells_have_equal_colours(self, opened):
        """Steps that differ by 0.06% look alike; the scale ends where a difference matters."""
        found = opened("long")
        found.draw_all()
        low, high = found.page.evaluate(
            """() => {
                const heat = echarts.getInstanceByDom(document.querySelector('[data-chart="heat"] .drawing'));
                return heat.getModel().getComponent("visualMap").getExtent();
            }"""
        )
        assert high >= 1.2 * low

    @pytest.mark.parametrize("name", ["eight", "timer", "layer", "gpu"])
    def test_a_print_fits_the_paper(self, opened, name):
        page = opened(name, viewport={"width": 1440, "height": 900}).page
        page.emulate_media(media="print")
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        wide = page.evaluate(
            """paper => [...document.querySelectorAll("canvas, table, pre, .bar")]
                .filter(at => at.offsetParent).map(at => [at.className, at.getBoundingClientRect()])
                .filter(([, box]) => box.left < -1 || box.right > paper + 2)
                .map(([name, box]) => [name, box.left, box.right])""",
            PAPER,
        )
        assert wide == []
        # One canvas for each chart: of several, Chromium prints only the last.
        assert page.evaluate(
            """[...document.querySelectorAll("figure.chart .drawing:has(> .printed)")].every(
                at => [...at.querySelectorAll("canvas")].filter(one => one.offsetParent).length === 1)"""
        )

    def test_a_print_has_the_cells_of_the_heat_map(self, opened):
        page = opened("eight").page
        page.emulate_media(media="print")
        inks = page.evaluate(
            """() => {
                dispatchEvent(new Event("beforeprint"));
                const canvas = document.querySelector('[data-chart="heat"] .printed');
                const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
                let cells = 0;
                for (let i = 0; i < data.length; i += 4) cells += data[i + 2] - data[i] > 20;
                return cells / (data.length / 4);
            }"""
        )
        assert inks > 0.2

    def test_a_slow_step_says_its_line(self, opened):
        found = opened("timer")
        found.draw_all()
        first, second = found.page.evaluate(
            """() => {
                const chart = echarts.getInstanceByDom(document.querySelector('[data-chart="times"] .drawing'));
                const say = dataIndex => chart.getOption().tooltip[0].formatter([
                    { name: String(dataIndex), dataIndex, marker: "", seriesName: "Step", value: 12.5 },
                    { name: "", dataIndex, marker: "", seriesName: "Reader", value: null }]);
                return [say(0), say(1)];
            }"""
        )
        assert (
            first
            == "0<br>Step <b>12.5 ms</b><br>Reader <b>-</b><br>train.py:20: &lt;b&gt;evaluate()&lt;/b&gt;"
        )
        assert second == "1<br>Step <b>12.5 ms</b><br>Reader <b>-</b>"

    def test_a_phase_has_one_colour(self, opened):
        found = opened("eight", color_scheme="light")
        found.draw_all()
        View(found)
        colours = found.page.evaluate(
            """() => {
                const bar = echarts.getInstanceByDom(document.querySelector('[data-chart="phases"] .drawing'));
                const bars = bar.getOption();
                const at = bars.yAxis[0].data.indexOf("Backward");
                const paint = text => { // any notation of a colour, as red, green and blue
                    const pen = document.createElement("canvas").getContext("2d");
                    pen.fillStyle = text;
                    pen.fillRect(0, 0, 1, 1);
                    return [...pen.getImageData(0, 0, 1, 1).data].join();
                };
                const lanes = document.querySelector('[data-chart="pipeline"]').lanes.model.spans.flat();
                const module = [...document.querySelectorAll('[data-chart="modules"] .module')].find(
                    one => one.textContent === "backward");
                const legend = [...document.querySelectorAll(".tl-legend button")].find(
                    one => one.textContent === "Backward");
                return [bars.series[0].data[at].itemStyle.color,
                    lanes.find(span => span.text.startsWith("B") && span.text.length < 4).fill,
                    module?.style.background,
                    legend.firstChild.style.background].filter(Boolean).map(paint);
            }"""
        )
        assert len(colours) >= 3
        assert len(set(colours)) == 1

    def test_details_of_a_span_are_in_the_window(self, opened):
        """With the tracks of eight ranks unfolded, which are taller than the window."""
        found = opened("eight", viewport={"width": 1440, "height": 900})
        view = View(found)
        view.figure.get_by_role("button", name="Unfold all ranks").click()
        view.settle()
        for row in (40, 900):
            view.click(0, row)
            view.page.wait_for_selector(".tl-name")
            top, bottom, spot = view.page.evaluate(
                """() => {
                    const t = document.querySelector('figure[data-chart="timeline"]').timeline;
                    const panel = t.panelBox.getBoundingClientRect();
                    const { track, depth } = t.selected;
                    const y = t.body.getBoundingClientRect().top + t.stack.topOf(track, depth) - t.scroller.scrollTop;
                    return [panel.top, panel.bottom, y];
                }"""
            )
            assert 0 < top < bottom <= 900
            assert 0 < spot < top  # the span itself is not behind its details

    def test_a_message_with_the_name_of_a_kernel_is_no_wider_than_a_phone(self, opened):
        page = opened("device", viewport={"width": 390, "height": 844}).page
        assert "ncclDevKernel" in page.locator("#unread").inner_text()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390

    def test_a_comparison_leads_with_its_verdict(self, opened):
        page = opened("layer", viewport={"width": 1440, "height": 900}).page
        assert page.locator("h1").inner_text().startswith("Step time: slower, +")
        assert page.locator("main h2").first.inner_text() == "Change from the baseline"
        box = page.locator("#headline .changes").bounding_box()
        assert box["y"] + box["height"] < 900

    @pytest.mark.parametrize("name", ["healthy", "timer", "eight", "gpu", "mixed"])
    def test_a_section_without_content_is_gone(self, opened, name):
        found = opened(name)
        keys = found.page.eval_on_selector_all("main > section", "all => all.map(at => at.id)")
        empty = [
            key
            for key in keys
            if found.page.locator(f"#{key}").locator("table, figure, dl, article").count() == 0
        ]
        assert set(empty) <= {"findings", "unread"}  # these are sentences
        assert "Nothing to show" not in found.page.locator("body").inner_text()
        links = found.page.eval_on_selector_all(
            "nav a", "all => all.map(at => at.getAttribute('href').slice(1))"
        )
        assert links == [key for key in keys if key != "headline"]

    def test_reasons_for_missing_sections_stand_at_the_end(self, opened):
        text = opened("healthy").page.locator("footer").inner_text()
        assert "Communication (the run has one rank)" in text
        assert "Memory (no allocation was recorded (`Profiler.profile_memory`))" in text

    @pytest.mark.parametrize(("name", "proposes"), [("mixed", False), ("eight", True)])
    def test_visualdl_is_proposed_for_its_own_files(self, opened, name, proposes):
        commands = opened(name).page.locator("#timeline pre").all_inner_texts()
        assert any("ppprof merge" in command for command in commands)
        assert any("visualdl" in command for command in commands) == proposes

    def test_memory_of_a_cpu_is_no_memory_of_a_device_in_chinese(self, opened):
        page = opened("zh").page
        shown = page.locator("#headline").inner_text() + " ".join(
            page.locator("h2, figcaption, th").all_inner_texts()
        )
        assert "显存" not in shown
