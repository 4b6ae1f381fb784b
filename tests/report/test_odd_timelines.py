"""Timelines of odd traces, and odd ways to use them, in Chromium."""

from __future__ import annotations

from itertools import accumulate

import pytest

from ppprof.analysis.report_data import report
from ppprof.analysis.report_data import timeline as module
from tests.fixtures.timeline import EPOCH_NS, Shapes, Thread, kernel, launch, span, write
from tests.fixtures.timeline_view import FIGURE, T, View, axe
from tests.report.runs_and_pages import gpu, in_browser, page_of

pytestmark = in_browser


def in_chunks():
    """Chunks of four events each.

    ::

        ProfileStep#0 ============================  0 to 400   ProfileStep#1 ==========  400 to 500
         GPT          ==========================    0 to 390     relu          ===       410 to 450
          Block       ========================      0 to 380
           op 0 to 8   =  =  =  =  =  =  =  =        each 10 us, 20 us after the last
    """
    ops = [
        span("Operator", f"op{n}", start, start + 10_000).around(
            launch(start + 1000, start + 2000, kernel(f"k{n}", start + 3000, start + 9000))
        )
        for n, start in enumerate(range(100_000, 280_000, 20_000))
    ]
    block = span("Forward", "Block", 30_000, 380_000).around(*ops)
    step = span("ProfileStep", "ProfileStep#0", 0, 400_000).around(
        span("Forward", "GPT", 10_000, 390_000).around(block)
    )
    relu = span("Operator", "relu", 410_000, 450_000)
    return step, span("ProfileStep", "ProfileStep#1", 400_000, 500_000).around(relu)


def graphs():
    """Two products of four kernels in one launch each; the page leaves out the shortest two events."""
    operators = []
    for start, lengths in (
        (0, (60_000, 2_000, 50_000, 70_000)),
        (500_000, (2_000, 40_000, 30_000)),
    ):
        ends = list(accumulate(lengths, initial=start + 10_000))
        kernels = [
            kernel(f"k{number}", begin, end)
            for number, (begin, end) in enumerate(zip(ends, ends[1:]))
        ]
        shapes = Shapes({"X0": [[512, 512]], "X1": [[512, 512]]}, {"X0": ["float32"]})
        product = span("Operator", "matmul", start, start + 400_000)
        operators.append(product.around(shapes, launch(start + 1000, start + 9000, *kernels)))
    return span("ProfileStep", "ProfileStep#0", 0, 1_000_000, *operators)


def nested(num):
    """``num`` spans of 1 us each before and after the span inside, around an operator of 10 us."""
    inner = span("Operator", "leaf", num * 1000, num * 1000 + 10_000)
    for level in reversed(range(num)):
        name = f"level {level}"
        inner = span("UserDefined", name, level * 1000, (2 * num - level) * 1000 + 10_000, inner)
    return inner


def ancient():
    """An event of the year 1970: the trace is 57 years long."""
    first = span("Operator", "ancient", 1 - EPOCH_NS, 100 - EPOCH_NS)
    steps = [
        span("ProfileStep", f"ProfileStep#{n}", 1000 * n, 1000 * n + 900).around(
            span("Operator", "now", 1000 * n + 10, 1000 * n + 500)
        )
        for n in range(2)
    ]
    return first, *steps


LONG = span("Operator", "gemm" * 100_000, 100, 900)


@pytest.fixture(scope="module")
def pages(folder):
    runs = {
        "gpu": gpu(folder / "odd_gpu"),
        "deep": write(
            folder / "deep.pb",
            Thread(1, "main", (span("ProfileStep", "ProfileStep#0", 0, 250_000, nested(100)),)),
        ),
        "ancient": write(folder / "ancient.pb", Thread(1, "main", ancient())),
        "instant": write(
            folder / "instant.pb",
            Thread(1, "main", (span("ProfileStep", "ProfileStep#0", 5, 5),)),
        ),
        "long": write(
            folder / "long.pb",
            Thread(1, "main", (span("ProfileStep", "ProfileStep#0", 0, 1000, LONG),)),
        ),
        "threads": write(
            folder / "threads.pb",
            Thread(1, "main", in_chunks()),
            *(Thread(n, "other", (span("UserDefined", "a", n, n + 9),)) for n in range(2, 202)),
        ),
    }
    pages = {name: page_of(folder, f"odd_{name}", run) for name, run in runs.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CHUNK_EVENTS", 4)
        run = write(folder / "chunks.pb", Thread(1, "main", in_chunks()))
        pages["chunks"] = page_of(folder, "odd_chunks", run)
    with pytest.MonkeyPatch.context() as patch:
        run = write(folder / "graphs.pb", Thread(1, "main", (graphs(),)))
        pages["whole"] = page_of(folder, "odd_whole", run)
        patch.setattr(report, "MOST_EVENTS", 10)  # of 12
        pages["shortened"] = page_of(folder, "odd_shortened", run)
    return pages


def press(view, *keys):
    view.figure.locator(".tl-body").focus()
    for key in keys:
        view.page.keyboard.press(key)
        view.settle()
    return view.eval("t.selected && t.selected.name")


# Events that begin in one chunk and reach into others.


def test_an_event_that_began_in_an_earlier_part_is_selected_whole(opened):
    view = View(opened("chunks"))
    track = view.eval("t.stack.lines.find(line => line.track).y")
    view.look(260_000, 450_000)
    view.figure.locator(".tl-body").click(position={"x": 300, "y": track + 2 * 18 + 9})
    view.page.wait_for_function(f"() => {T}.selected")
    view.settle()
    assert view.eval("[t.selected.name, t.selected.chunk.id]") == [
        "Block",
        view.eval("t.selected.track.chunks[0].id"),
    ]
    assert len(view.links("Runs on the device")) == 9
    assert view.facts["Inside"] == "GPT"
    assert press(view, "p", "p") == "ProfileStep#0"
    assert press(view, ".") == "ProfileStep#1"
    assert press(view, ",", "c", "c") == "Block"
    assert press(view, "c") == "op0"


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("whole", ("182 us", " · 1.47 TFLOP/s"), ("72 us", " · 3.73 TFLOP/s")),
        ("shortened", ("180 us +", ""), ("70 us +", "")),
    ],
)
def test_a_sum_without_the_events_left_out_says_so(opened, name, first, second):
    """A product of 2 * 512³ FLOPs; the kernel left out stands between others, or is the first one."""
    view = View(opened(name))
    for start, (time, rate) in ((0, first), (500_000, second)):
        view.page.evaluate(
            f"""async start => {{
                const {{ store }} = {T};
                const chunk = store.ranks[0].tracks[0].chunks[0];
                const {{ sig, start: starts }} = await store.wait(chunk);
                const {{ name }} = store.ranks[0].signatures;
                const at = sig.findIndex((one, at) => name[one] === "matmul" && starts[at] === start);
                await {T}.select(await eventAt(store, {{ chunk, at }}));
            }}""",
            start,
        )
        view.settle()
        assert view.facts["Device time"] == time
        assert view.facts["FLOPs"] == f"{2 * 512**3:,}{rate}"


def test_a_range_across_parts_counts_each_event_once(opened):
    """From 90 to 290 us: 9 operators of 10 us, of which each launch takes 1; the rest is Block's."""
    view = View(opened("chunks"))
    view.eval("t.setRange(90000, 290000, t.store.ranks[0], true)")
    (host, device) = view.fill().values()
    assert host["Block"] == (200_000 - 9 * 10_000, 1)
    assert host["GPT"] == host["ProfileStep#0"] == (0, 1)
    assert {host[f"op{n}"] for n in range(9)} == {(9_000, 1)}
    assert host["cudaLaunchKernel"] == (9_000, 9)
    assert device == {f"k{n}": (6_000, 1) for n in range(9)}


def test_deep_events_have_their_own_parents_and_times(opened):
    """Rows below the 60th share one; each of the 100 spans has 2 us of its own."""
    view = View(opened("deep"))
    view.eval("t.setRange(0, t.store.end, t.store.ranks[0], true)")
    (found,) = view.fill().values()
    assert {found[f"level {n}"] for n in range(100)} == {(2_000, 1)}
    assert found["leaf"] == (10_000, 1)
    parents = view.page.evaluate(
        f"{T}.store.wait({T}.store.ranks[0].tracks[0].chunks[0]).then(events => [...events.parent])"
    )
    assert parents == list(range(-1, 101))


# Odd times.


def test_a_trace_of_57_years_can_be_zoomed_to_its_end(opened):
    """Numbers have 53 bits, so that a smaller view than some microseconds would have no ticks."""
    view = View(opened("ancient"))
    end = view.eval("t.store.end")
    view.look(end - 100, end)
    assert 0 < view.shown[1] - view.shown[0] < 1e6
    assert view.shown[1] == end
    assert press(view, "w", "w", "a", "d", ".") is not None


def test_an_event_without_length_can_be_a_range(opened):
    view = View(opened("instant"))
    assert press(view, ".", ".", "r") is None
    assert view.eval("t.range.to - t.range.from") == 1
    assert {num for _, num in next(iter(view.fill().values())).values()} == {1}


def test_a_name_of_400_000_letters_does_not_fill_the_window(opened):
    view = View(opened("long"))
    view.page.mouse.move(*view.spot(0, 1))
    tip = view.page.locator("#tip")
    tip.wait_for()
    assert tip.inner_text() == "gemm" * 500 + "…"
    assert press(view, ".", "c") == LONG.name
    assert view.figure.locator(".tl-panel").bounding_box()["height"] < 600


def test_threads_without_room_are_counted(opened):
    view = View(opened("threads"))
    assert view.eval("t.store.ranks[0].tracks.length") == 200
    assert view.eval("t.store.ranks[0].tracks.filter(track => !track.isHost).length") == 1
    assert view.figure.locator(".tl-note").all_inner_texts() == [
        "2 events of further threads are left out: the page shows 200 threads and streams of a"
        " rank; `ppprof merge` writes all."
    ]


# Links and the history.


def test_back_ends_a_search_that_a_link_began(opened):
    view = View(opened("gpu"))
    press(view, "w")
    view.page.locator("#operators tbody a").first.click()
    view.settle()
    assert view.eval("t.text") == "matmul"
    view.page.go_back()
    view.settle()
    assert view.eval("[t.text, t.searchBox.value]") == ["", ""]


def test_a_link_can_be_followed_twice(opened):
    view = View(opened("gpu"))
    link = view.page.locator("#operators tbody a").first
    link.click()
    view.settle()
    link.scroll_into_view_if_needed()
    assert view.figure.bounding_box()["y"] > 900
    link.click()
    view.settle()
    view.page.wait_for_function(
        f"() => document.querySelector('{FIGURE}').getBoundingClientRect().y < 300"
    )


def test_a_selection_that_arrives_late_is_dropped(opened):
    """Back twice: the first of both entries still waits for its chunk."""
    view = View(opened("chunks"))
    press(view, ".", "c", "c")
    view.eval("t.store.loaded.clear()")
    view.eval(
        """(arg = t.store.load.bind(t.store),
            t.store.load = chunk => new Promise(done => setTimeout(done, 300)).then(() => arg(chunk)))"""
    )
    view.page.evaluate("history.back()")
    view.page.wait_for_timeout(100)
    view.page.evaluate("history.go(-2)")
    view.page.wait_for_timeout(1500)
    assert view.eval("t.selected") is None


def test_any_text_can_be_searched(opened):
    view = View(opened("gpu"))
    view.eval("t.search(String.fromCharCode(0xd800) + '&=+ %')")
    view.settle()
    assert view.hash["find"] == "\ufffd&=+ %"


def test_a_search_behind_the_last_match_begins_again(opened):
    view = View(opened("gpu"))
    view.look(280_000, 290_000)
    search = view.figure.get_by_label("Find events by name")
    search.fill("matmul")
    for key, shown in (("Enter", "1 of 6"), ("Shift+Enter", "6 of 6")):
        search.press(key)
        view.settle()
        assert view.figure.locator(".tl-found").inner_text() == shown
    view.eval("t.clearSelection()")
    view.look(280_000, 290_000)
    search.press("Shift+Enter")
    view.settle()
    assert view.figure.locator(".tl-found").inner_text() == "6 of 6"


# Keyboard, assistive technology, paper, old browsers.


def test_the_keyboard_stays_on_the_timeline(opened):
    view = View(opened("gpu"))
    press(view, ".", "c", "c", "c")
    focused = "document.activeElement.className"
    view.figure.locator(".tl-links button").first.press("Enter")
    view.settle()
    assert view.page.evaluate(focused) == "tl-body"
    view.figure.get_by_role("button", name="Close").press("Enter")
    assert view.page.evaluate(focused) == "tl-body"


@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_has_no_serious_finding_after_use(opened, scheme, width):
    found = opened(
        "gpu", color_scheme=scheme, viewport={"width": width, "height": 900}, bypass_csp=True
    )
    view = View(found)
    found.page.evaluate(axe())
    for use in (
        lambda: press(view, ".", "c", "c", "c"),
        lambda: press(view, "r"),
        lambda: view.figure.get_by_label("Find events by name").fill("matmul"),
        lambda: press(view, "n", "x"),
        lambda: view.figure.locator(".tl-legend button").first.click(),
    ):
        use()
        view.settle()
        result = found.page.evaluate(
            f"axe.run(document.querySelector('{FIGURE}'), {{resultTypes: ['violations']}})"
        )
        serious = [
            (violation["id"], [node["target"] for node in violation["nodes"]][:3])
            for violation in result["violations"]
            if violation["impact"] in ("serious", "critical")
        ]
        assert serious == []


def test_a_print_has_the_timeline_in_light_colours(opened):
    """A printer takes the page as it is after the event, without another frame."""
    view = View(opened("gpu", color_scheme="dark"))
    shades = view.page.evaluate(
        """() => {
            dispatchEvent(new Event("beforeprint"));
            const seen = new Set();
            for (const canvas of document.querySelectorAll(".tl-body, .tl-head")) {
                const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
                for (let i = 0; i < data.length; i += 4)
                    if (data[i + 3] === 255) seen.add(Math.round((data[i] + data[i + 1] + data[i + 2]) / 3));
            }
            return [...seen];
        }"""
    )
    assert len(shades) > 5
    assert sum(shade > 150 for shade in shades) > len(shades) / 3


def test_an_old_browser_gets_a_message(chromium, pages):
    context = chromium.new_context(offline=True)
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.add_init_script("delete window.DecompressionStream")
    page.goto(pages["gpu"].as_uri() + "#t=0-1")
    page.locator(FIGURE).scroll_into_view_if_needed()
    message = page.locator(f"{FIGURE} .tl-note")
    message.wait_for()
    assert message.inner_text().startswith("This browser cannot unpack the timeline.")
    page.locator("#theme").click()
    page.set_viewport_size({"width": 700, "height": 500})
    page.wait_for_timeout(200)
    assert errors == []
    context.close()
