"""What a reader does with the page: in Chromium, by mouse, keyboard and touch, on all widths."""

from __future__ import annotations

import csv
import io
import re
from urllib.parse import parse_qs

import polars as pl
import pytest

import ppprof
from ppprof.analysis.profile.module_tree import OCCURRENCE, SEPARATOR
from tests.fixtures.timeline import Thread, span, write
from tests.fixtures.timeline_view import axe
from tests.oracles.chromium import Opened
from tests.report.runs_and_pages import EVIL, TORCH, in_browser, page_of

pytestmark = in_browser

NAMES = ("run", "zh", "gpu", "timer", "layer", "eight")

SCREENS = {
    "1440": {"viewport": {"width": 1440, "height": 900}, "color_scheme": "light"},
    "1280": {"viewport": {"width": 1280, "height": 800}, "color_scheme": "dark"},
    "390": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light", "has_touch": True},
}
"""Options of a desktop's, a laptop's and a phone's page, keyed by width."""

IS_IN_VIEW = """(selector) => {
    const box = document.querySelector(selector).getBoundingClientRect();
    return box.top < innerHeight && box.bottom > 0;
}"""
"""A script that returns whether a part of an element is in the view."""

on_all_screens = pytest.mark.parametrize("screen", SCREENS)


def place(url):
    """Return start, end, rank and name of a link to the timeline."""
    fields = {key: values[0] for key, values in parse_qs(url.partition("#")[2]).items()}
    start, end = map(float, fields["t"].split("-"))
    return start, end, int(fields["rank"]), fields.get("find", "")


# From a finding, row or point to its place, and back.


@pytest.mark.parametrize(
    ("name", "selector"),
    [
        ("layer", ".second a"),
        ("eight", "h1 a"),
        ("layer", ".finding .see a"),
        ("eight", "#communication tbody a"),
        ("eight", "#ranks tbody a"),
        ("gpu", "#operators tbody a"),
        ("gpu", "#kernels tbody a"),
        ("gpu", "#efficiency tbody a"),
        ("zh", "#operators tbody a"),
        pytest.param("gpu", "#memory tbody a", marks=pytest.mark.jobs),
    ],
)
@pytest.mark.parametrize(
    ("means", "screen"), [("mouse", "1440"), ("keyboard", "1280"), ("touch", "390")]
)
def test_a_link_shows_its_place_and_back_returns(opened, name, selector, means, screen):
    page = opened(name, **SCREENS[screen]).page
    link = page.locator(selector).first
    link.scroll_into_view_if_needed()
    before = page.url
    {"mouse": link.click, "keyboard": lambda: link.press("Enter"), "touch": link.tap}[means]()
    assert page.url.partition("#")[2] == link.get_attribute("href")[1:]
    start, end, rank, _ = place(page.url)
    assert 0 <= start < end < 60
    assert rank >= 0
    page.wait_for_function(IS_IN_VIEW, arg="#timeline")
    page.go_back()
    assert page.url == before
    page.wait_for_function(IS_IN_VIEW, arg=selector)


@pytest.mark.parametrize("name", ["gpu", "eight"])
def test_every_row_leads_to_its_place(opened, name):
    page = opened(name).page
    rows = page.eval_on_selector_all(
        "figure.table tbody tr",
        """all => all.filter(row => !row.querySelector("a[href^='#t=']")).map(row =>
            [row.closest("figure").dataset.table, row.textContent])""",
    )
    assert rows == []


def test_a_name_that_is_markup_is_found_by_its_name(opened):
    """The kernel runs from 15 to 45 us: the link shows half of its time on either side."""
    page = opened("gpu").page
    page.locator("#kernels a").first.click()
    assert place(page.url) == (0, pytest.approx(60e-6), 0, EVIL)


@pytest.mark.parametrize(
    ("name", "chart", "series", "screen"),
    [
        ("gpu", "roofline", 0, "1440"),
        ("gpu", "roofline", 0, "390"),
        ("gpu", "steps", 0, "1280"),
        ("eight", "heat", 0, "1440"),
        ("eight", "heat", 0, "390"),
        ("eight", "communication", 1, "1280"),
    ],
)
def test_a_click_on_a_chart_shows_its_place(opened, name, chart, series, screen):
    found = opened(name, **SCREENS[screen])
    found.draw_all()
    page = found.page
    drawing = page.locator(f'figure[data-chart="{chart}"] .drawing')
    drawing.scroll_into_view_if_needed()
    x, y = drawing.evaluate(
        """(box, series) => {
            const chart = echarts.getInstanceByDom(box);
            const item = chart.getModel().getSeriesByIndex(series).getData().getItemGraphicEl(0);
            const shape = item.getBoundingRect().clone();
            shape.applyTransform(item.getComputedTransform() || [1, 0, 0, 1, 0, 0]);
            return [shape.x + shape.width / 2, shape.y + shape.height / 2];
        }""",
        series,
    )
    drawing.click(position={"x": x, "y": y})
    page.wait_for_function("location.hash.startsWith('#t=')")
    start, end, _, _ = place(page.url)
    assert 0 <= start < end


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("name", ["layer", "eight"])
def test_the_scale_of_the_heat_map_has_one_label_at_each_end(opened, name, width):
    """One rank, and eight: the labels do not leave the chart, and do not cover other texts."""
    found = opened(name, viewport={"width": width, "height": 800})
    found.draw_all()
    size, boxes = found.page.locator('figure[data-chart="heat"] .drawing').evaluate(
        """box => [[box.clientWidth, box.clientHeight],
            echarts.getInstanceByDom(box).getZr().storage.getDisplayList()
                .filter(item => item.style.text && !item.ignore && !item.invisible)
                .map(item => {
                    const shape = item.getBoundingRect().clone();
                    shape.applyTransform(item.getComputedTransform() || [1, 0, 0, 1, 0, 0]);
                    return [item.style.text, shape.x, shape.y, shape.width, shape.height];
                })]"""
    )
    ends = [box for box in boxes if str(box[0]).endswith("ms")]
    assert len(ends) == 2
    for end in ends:
        _, x, y, width, height = end
        assert x >= 0
        assert x + width <= size[0]
        assert y >= 0
        assert y + height <= size[1]
        for _, left, top, wide, high in (box for box in boxes if box is not end):
            apart = x + width <= left or left + wide <= x or y + height <= top or top + high <= y
            assert apart


# Tables.


@on_all_screens
def test_each_table_says_how_many_rows_it_shows(opened, screen):
    page = opened("eight", **SCREENS[screen]).page
    table = page.locator('figure[data-table="operators"]')
    num = table.locator("tbody tr").count()
    assert table.locator(".count").inner_text() == f"{num} of {num} rows"
    table.locator("input").fill("grad")
    shown = table.locator("tbody tr:visible").count()
    assert 0 < shown < num
    assert table.locator(".count").inner_text() == f"{shown} of {num} rows"


def test_each_header_has_a_visible_sort_sign(opened):
    page = opened("gpu").page
    signs = page.evaluate(
        """[...document.querySelectorAll("thead th button")].filter(at => at.offsetParent).map(
            at => getComputedStyle(at, "::after").content.match(/[↕↑↓]/)?.[0])"""
    )
    assert len(signs) > 20
    assert set(signs) == {"↕", "↑", "↓"}


def test_headings_stay_visible_in_a_long_table(opened):
    page = opened("eight").page
    box = page.locator('figure[data-table="operators"] .scroll')
    box.evaluate("at => { at.style.maxHeight = '200px'; at.scrollTop = 1e6; }")
    tops = box.evaluate(
        """at => [at, at.querySelector("th"), at.querySelector("tbody tr:last-child")].map(
            one => one.getBoundingClientRect().top)"""
    )
    assert tops[0] <= tops[1] < tops[2]


def columns(table):
    return table.locator("thead th:visible button").evaluate_all(
        "all => all.map(at => at.firstChild.textContent.trim())"
    )


@on_all_screens
def test_a_table_shows_one_number_of_one_clock(opened, screen):
    page = opened("gpu", **SCREENS[screen]).page
    table = page.locator('figure[data-table="operators"]')
    assert columns(table) == [
        "Name",
        "Calls",
        "GPU total",
        "GPU self",
        "Mean",
        "Maximum",
        "GPU share",
    ]
    table.get_by_label("Number").select_option("mean")
    assert columns(table) == ["Name", "Mean"]
    rows = table.locator("tbody tr")
    assert rows.locator("td:visible").all_inner_texts() == [
        "matmul",
        "0.030",
        "matmul_grad",
        "0.019",
    ]
    table.get_by_label("Clock").select_option("cpu")
    assert rows.locator("td:visible").all_inner_texts() == [
        "matmul_grad",
        "0.026",
        "matmul",
        "0.012",
    ]
    table.get_by_label("Clock").select_option("")
    table.get_by_label("Number").select_option("share")
    assert columns(table) == ["Name", "CPU share", "GPU share"]


def test_a_table_is_saved_as_csv(opened):
    """Numbers are plain, with the unit in the header; hidden columns and rows are left out."""
    page = opened("gpu", accept_downloads=True).page
    table = page.locator('figure[data-table="kernels"]')
    with page.expect_download() as download:
        table.get_by_role("button", name="CSV").click()
    assert download.value.suggested_filename == "kernels.csv"
    text = download.value.path().read_text("utf-8-sig")
    head, *rows = csv.reader(io.StringIO(text))
    assert head == ["Name", "Calls", "GPU total (ns)", "Mean (ns)", "Maximum (ns)", "GPU share"]
    assert [row[:2] for row in rows] == [[EVIL, "1"], ["gemm_grad", "1"]]
    assert [float(row[2]) for row in rows] == [30_000, 19_000]


def saved(page, key):
    """The header and rows of a table's CSV file."""
    table = page.locator(f'figure[data-table="{key}"]')
    with page.expect_download() as download:
        table.get_by_role("button", name="CSV").click()
    text = download.value.path().read_text("utf-8-sig")
    return list(csv.reader(io.StringIO(text)))


def test_a_cell_of_several_numbers_is_saved_as_it_is_shown(opened):
    """``12 / 3 / 4`` and ``3 (75%)`` are sorted by one of their numbers."""
    page = opened("eight", accept_downloads=True).page
    head, *rows = saved(page, "groups")
    verdicts, last = head.index("Link / late / mixed"), head.index("Last to arrive")
    shown = page.eval_on_selector_all(
        "[data-table=groups] tbody tr",
        "all => all.map(row => [...row.cells].map(cell => cell.textContent))",
    )
    assert rows
    assert [(row[verdicts], row[last]) for row in rows] == [
        (row[verdicts], row[last]) for row in shown
    ]
    assert re.fullmatch(r"\d+ / \d+ / \d+", rows[0][verdicts])
    assert re.fullmatch(r"\d+ \(\d+%\)", rows[0][last])


def test_the_overview_of_a_comparison_is_saved_with_its_units(opened):
    """Its rows are times, bytes and ratios: no unit in the header fits all."""
    page = opened("layer", accept_downloads=True).page
    rows = {name: numbers for name, *numbers in saved(page, "change")[1:]}
    assert all(re.fullmatch(r"[\d.]+ m?s", number) for number in rows["Mean step"][:2])
    assert re.fullmatch(r"[▲▼]? ?'?[+-][\d.]+ m?s", rows["Mean step"][2])
    assert re.fullmatch(r"[▲▼]? ?'?[+-][\d.]+%", rows["Mean step"][3])
    assert rows["CPU utilisation"][0].endswith("%")


def test_a_name_is_no_formula_in_a_spreadsheet(opened):
    page = opened("gpu").page
    texts = ["=1+1", "@sum", "-rpc", "-12.5", "a,b", 'a"b', "plain"]
    assert page.evaluate("texts => texts.map(quoted)", texts) == [
        *("'=1+1", "'@sum", "'-rpc", "-12.5"),
        *('"a,b"', '"a""b"', "plain"),
    ]


def test_a_table_is_copied(opened):
    page = opened("gpu", permissions=["clipboard-read", "clipboard-write"]).page
    table = page.locator('figure[data-table="kernels"]')
    table.get_by_role("button", name="Copy").click()
    page.wait_for_function(
        "() => document.querySelector('[data-table=kernels] .said').textContent === '2 rows copied'"
    )
    lines = page.evaluate("navigator.clipboard.readText()").splitlines()
    assert lines[0].split("\t")[:2] == ["Name", "Calls"]
    assert lines[1].split("\t")[0] == EVIL


def test_a_copied_name_is_no_formula_in_a_spreadsheet(opened):
    page = opened("gpu", permissions=["clipboard-read", "clipboard-write"]).page
    table = page.locator('figure[data-table="kernels"]')
    table.locator("tbody td").first.evaluate("at => { at.textContent = '=HYPERLINK(0)'; }")
    table.get_by_role("button", name="Copy").click()
    page.wait_for_function("() => document.querySelector('[data-table=kernels] .said').textContent")
    cells = page.evaluate("navigator.clipboard.readText()").splitlines()[1].split("\t")
    assert cells[0] == "'=HYPERLINK(0)"
    assert cells[1] == "1"


# Modules.


@on_all_screens
def test_a_chosen_module_limits_the_operators_and_kernels(opened, screen):
    """Block has the matmul with its kernel of 30 us; the Backward has the rest."""
    found = opened("gpu", **SCREENS[screen])
    found.draw_all()
    page = found.page
    page.locator('figure[data-chart="modules"] .module', has_text="Block").click()
    operators = page.locator('figure[data-table="operators"]')
    kernels = page.locator('figure[data-table="kernels"]')
    assert operators.locator("tbody td:visible").all_inner_texts() == [
        *("matmul", "1", "0.030", "0.030", "0.030", "-", "100.0%")
    ]
    assert kernels.locator("tbody td:visible").all_inner_texts() == [
        *(EVIL, "1", "0.030", "0.030", "-", "100.0%")
    ]
    assert operators.locator("tbody a").count() == 1
    assert operators.locator(".count").inner_text() == "1 of 1 row"
    operators.get_by_role("button", name="All modules").click()
    assert operators.locator("tbody tr").count() == kernels.locator("tbody tr").count() == 2
    assert operators.locator(".chip").count() == 0


def test_a_chosen_module_has_its_forward_and_its_gradients(opened):
    """Their times, here and in the library, and the operators of both."""
    found = opened("torch")
    found.draw_all()
    page = found.page
    page.locator('figure[data-chart="modules"] .module', has_text="Linear").first.click()
    rows = page.locator('figure[data-chart="modules"] .chosen tr').all_inner_texts()
    shown = dict(re.split(r"\t", row.strip(), maxsplit=1) for row in rows if row.strip())
    modules = ppprof.diff(*[ppprof.open(TORCH)] * 2).modules_with_paths
    path = "Net#0/Block#0/Linear#0".replace("#", OCCURRENCE).replace("/", SEPARATOR)
    own = pl.col("baseline_path").is_in([path, f"Backward{OCCURRENCE}0{SEPARATOR}{path}"])
    forward, backward = modules.filter(own)["baseline_time_ns"]
    number, unit = shown["Forward and backward"].split()
    factor = {"ms": 1e6, "us": 1e3, "µs": 1e3}[unit]
    assert float(number) * factor == pytest.approx(forward + backward, rel=0.01)
    names = page.locator('figure[data-table="operators"] tbody tr td:first-child').all_inner_texts()
    assert {"aten::addmm", "AddmmBackward0"} <= {name.strip() for name in names}


@pytest.mark.parametrize(
    ("means", "screen"),
    [
        pytest.param("mouse", "1440", marks=pytest.mark.jobs),
        ("keyboard", "1280"),
        ("touch", "390"),
    ],
)
def test_a_module_leads_to_its_longest_call_and_back_returns(opened, means, screen):
    """Of the three calls of Block, from 6 to 30 us of a step, all equally long: the first."""
    found = opened("gpu", **SCREENS[screen])
    found.draw_all()
    page = found.page
    figure = page.locator('figure[data-chart="modules"]')
    block = figure.locator(".module", has_text="Block")
    block.scroll_into_view_if_needed()
    before = page.url
    {"mouse": block.click, "keyboard": lambda: block.press("Enter"), "touch": block.tap}[means]()
    page.wait_for_function("location.hash.startsWith('#t=')")
    start, end, rank, name = place(page.url)
    assert (rank, name) == (0, "Block")
    assert start <= 6e-6 < 30e-6 <= end < 100e-6
    timeline = page.locator("#timeline figure")
    page.wait_for_function(IS_IN_VIEW, arg="#timeline")
    assert timeline.get_by_role("searchbox").input_value() == "Block"
    assert timeline.locator(".chip").inner_text() == "Module: GPT › Block All modules"
    for table in ("operators", "kernels"):
        assert page.locator(f'figure[data-table="{table}"] tbody tr').count() == 1
    page.go_back()
    assert page.url == before
    page.wait_for_function(IS_IN_VIEW, arg='.module[aria-selected="true"]')
    # The choice stays until it is undone, here or above the timeline.
    assert page.locator('figure[data-table="operators"] .chip').count() == 1
    timeline.get_by_role("button", name="All modules").click()
    assert page.locator(".chip").count() == 0
    assert page.locator('figure[data-table="operators"] tbody tr').count() == 2


def test_a_module_whose_place_is_shown_already_leads_there_again(opened):
    found = opened("gpu")
    found.draw_all()
    page = found.page
    block = page.locator('figure[data-chart="modules"] .module', has_text="Block")
    for _ in range(2):
        page.evaluate("scrollTo(0, 0)")
        block.click()
        page.wait_for_function(IS_IN_VIEW, arg="#timeline")
    assert page.evaluate("history.length") == 2 + 1


def test_the_space_key_chooses_a_module_and_stays(opened):
    found = opened("gpu")
    found.draw_all()
    page = found.page
    before = page.url
    figure = page.locator('figure[data-chart="modules"]')
    figure.locator(".module", has_text="Block").press(" ")
    assert page.locator('figure[data-table="operators"] .chip').count() == 1
    assert page.url == before
    figure.get_by_role("link", name="Show in the timeline").click()
    assert place(page.url)[2:] == (0, "Block")
    page.go_back()
    assert page.url == before


def test_a_module_of_a_comparison_leads_to_its_longest_call_in_the_experiment(opened):
    found = opened("layer")
    found.draw_all()
    page = found.page
    page.locator('figure[data-chart="change_modules"] .module', has_text="GPT").first.click()
    page.wait_for_function("location.hash.startsWith('#t=')")
    assert place(page.url)[2:] == (0, "GPT")
    assert page.locator("#timeline .chip").count() == 1


def test_the_numbers_of_a_module_can_be_pointed_at(opened):
    """Their table has no headers, so no cell has a definition."""
    found = opened("gpu")
    found.draw_all()
    found.page.locator('figure[data-chart="modules"] .module', has_text="Block").click()
    found.page.locator(".chosen td").first.hover()
    assert found.page.locator("#tip").is_hidden()


def test_modules_are_walked_with_the_keyboard(opened):
    found = opened("gpu")
    found.draw_all()
    page = found.page
    tree = page.locator('figure[data-chart="modules"] [role=tree]')
    tree.locator('[tabindex="0"]').focus()
    names = []
    for key in ("ArrowDown", "ArrowRight", "ArrowRight", "ArrowLeft", "ArrowDown", "ArrowUp"):
        page.keyboard.press(key)
        names.append(page.evaluate("document.activeElement.textContent"))
    assert names[4:] == ["Block", "GPT"]
    page.keyboard.press("Enter")
    assert (
        page.locator('figure[data-chart="modules"] .path')
        .inner_text()
        .startswith("Whole step › GPT")
    )
    page.keyboard.press("Escape")
    assert page.locator(".chip").count() == 0


def test_modules_may_have_the_names_of_properties_of_objects(chromium, tmp_path):
    layers = [
        span("Forward", name, start, start + 40_000)
        for name, start in (("Constructor", 0), ("__proto__", 50_000), ("Linear", 100_000))
    ]
    step = span("ProfileStep", "ProfileStep#0", 0, 150_000, *layers)
    path = write(tmp_path / "names.pb", Thread(1, "main", (step,)))
    found = Opened(chromium, page_of(tmp_path, "names", path))
    found.draw_all()
    boxes = found.page.locator('figure[data-chart="modules"] .module')
    names = {box.inner_text() for box in boxes.all()}
    assert {"Constructor", "__proto__", "Linear"} <= names
    assert found.complaints == []


def test_a_comparison_of_a_module_has_all_four_columns(opened):
    """The numbers of a module and of the rest of the step add up to those of the step."""
    found = opened("layer")
    found.draw_all()
    page = found.page
    table = page.locator('figure[data-table="change_operators"]')
    page.locator('figure[data-chart="change_modules"] .module', has_text="GPT").first.click()
    assert columns(table)[:6] == ["Name", "Status", "Baseline", "Experiment", "Delta", "Delta %"]
    for row in table.locator("tbody tr").all():
        cells = row.locator("td:visible").all_inner_texts()
        before, after, delta = (float(cell.replace(",", "")) for cell in cells[2:5])
        assert delta == pytest.approx(after - before, abs=0.0011)
    shown = page.locator('figure[data-chart="change_modules"] .chosen thead th').all_inner_texts()
    assert shown == ["Baseline", "Experiment", "Delta", "Delta %"]


def test_time_outside_all_modules_has_boxes(opened):
    found = opened("layer")
    found.draw_all()
    assert found.page.locator('figure[data-chart="change_modules"] .module.outside').count() >= 1


@on_all_screens
def test_only_significant_changes_have_a_colour(opened, screen):
    """The planted change slows one Block; most modules did not change."""
    found = opened("layer", **SCREENS[screen])
    found.draw_all()
    slower = found.page.locator('figure[data-chart="change_modules"] .module.slower')
    assert slower.first.inner_text().startswith("▲ Block")
    assert found.page.locator('figure[data-chart="change_modules"] .module.same').count() > 5
    marked = found.page.locator("#change td.worse, #change td.better").all_inner_texts()
    assert all(re.match("[▲▼]", text) for text in marked)
    grey = found.page.locator("#change td.same").all_inner_texts()
    assert grey
    assert not any(re.match("[▲▼]", text) for text in grey)


def test_the_number_of_unchanged_names_stands_below_each_table(opened):
    """As many as ``ppprof diff`` counts: 49 operators, of which one changed."""
    page = opened("layer").page
    assert page.locator('figure[data-table="change_operators"] .count').inner_text() == (
        "1 of 1 row"
    )
    notes = page.locator("#change p").all_inner_texts()
    assert [note for note in notes if note.startswith("Left out")] == [
        "Left out: 48 names that change by less than the noise or 0.1% of a step. "
        "`ppprof diff --all` prints them, too."
    ]


# The whole page.


def test_step_times_alone_have_a_page(opened):
    found = opened("timer")
    found.draw_all()
    titles = found.page.eval_on_selector_all("h2", "all => all.map(at => at.textContent)")
    assert titles == ["What to do", "Steps", "Ranks", "Definitions"]
    assert "timer_only" in found.page.locator("#findings").inner_text()
    assert found.page.locator("#ranks tbody tr").count() == 4


def test_a_device_that_was_not_recorded_leaves_no_empty_chart(opened):
    """The parts of a step, and the numbers of the heat map, are unknown then."""
    found = opened("unrecorded")
    found.draw_all()
    charts = found.page.eval_on_selector_all(
        "figure.chart", "all => all.map(at => at.dataset.chart)"
    )
    assert charts == ["phases", "modules", "memory", "timeline"]
    assert min(found.colours().values()) > 1


def test_definitions_are_closed_and_only_of_the_page(opened):
    page = opened("gpu").page
    assert not page.locator("#definitions dl").is_visible()
    terms = set(page.eval_on_selector_all("[data-term]", "all => all.map(at => at.dataset.term)"))
    defined = page.eval_on_selector_all(".glossary > div", "all => all.map(at => at.id.slice(5))")
    assert terms <= set(defined)
    assert not {"bubble", "verdict", "baseline", "bandwidth"} & set(defined)


@pytest.mark.parametrize("width", [390, 1280, 1440])
@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_wider_than_the_window(opened, name, width):
    found = opened(name, viewport={"width": width, "height": 800})
    found.draw_all()
    assert found.page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("width", [390, 1280, 1440])
def test_no_text_of_a_chart_is_smaller_than_12_pixels(opened, width):
    found = opened("run", viewport={"width": width, "height": 800})
    found.draw_all()
    sizes = found.page.evaluate(
        r"""[...document.querySelectorAll("figure.chart .drawing")].map(echarts.getInstanceByDom)
            .filter(chart => chart).flatMap(chart => chart.getZr().storage.getDisplayList())
            .filter(item => item.style.text && !item.ignore)
            .map(item => Number(item.style.font.match(/([\d.]+)px/)[1]))"""
    )
    assert len(sizes) > 20
    assert min(sizes) >= 12


@pytest.mark.parametrize("width", [390, 1280, 1440])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", NAMES)
def test_axe_has_no_serious_finding(opened, name, scheme, width):
    """axe-core checks contrasts, names, roles and keyboard access."""
    found = opened(
        name, color_scheme=scheme, viewport={"width": width, "height": 900}, bypass_csp=True
    )
    found.draw_all()
    found.page.evaluate("for (const at of document.querySelectorAll('details')) at.open = true")
    found.page.evaluate(axe())
    result = found.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    serious = [
        (violation["id"], [node["target"] for node in violation["nodes"]][:3])
        for violation in result["violations"]
        if violation["impact"] in ("serious", "critical")
    ]
    assert serious == []


def test_a_print_has_the_content_and_no_controls(opened):
    page = opened("run", color_scheme="dark").page
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    assert page.locator(".glossary").is_visible()
    assert not page.locator("nav").is_visible()
    assert not page.get_by_role("button", name="CSV").first.is_visible()
    assert (
        page.locator("#operators .scroll").evaluate("at => getComputedStyle(at).overflow")
        == "visible"
    )
    assert page.locator("figure.chart:not([data-drawn])").count() == 0
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator(".printed").count() == 0
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert not page.locator(".glossary").is_visible()
