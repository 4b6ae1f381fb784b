"use strict";
// Bars, lines and heat maps, drawn by ECharts; patterns distinguish series without colours.

// Okabe and Ito's colours, which most colour-blind people can distinguish.
const SHARE_COLOURS = {
  computation: "#0072b2", exposed: "#d55e00", data_loading: "#e69f00", bubble: "#999999",
  host_bound: "#cc79a7", queued: "#f0e442", rest: "#56b4e9", hidden: "#009e73",
};
// One pattern for each share of a step, the same on all pages.
const DECALS = {
  exposed: { symbol: "rect", dashArrayX: [1, 0], dashArrayY: [3, 4], rotation: Math.PI / 4 },
  data_loading: { symbol: "circle", dashArrayX: [[6, 6], [0, 6, 6, 0]], dashArrayY: [5, 0], symbolSize: 0.7 },
  bubble: { symbol: "rect", dashArrayX: [1, 0], dashArrayY: [2, 6], rotation: 0 },
  host_bound: { symbol: "rect", dashArrayX: [1, 0], dashArrayY: [3, 4], rotation: -Math.PI / 4 },
  queued: { symbol: "triangle", dashArrayX: [[8, 8], [0, 8, 8, 0]], dashArrayY: [7, 2], symbolSize: 0.7 },
  rest: { symbol: "rect", dashArrayX: [[5, 5], [0, 5, 5, 0]], dashArrayY: [3, 0], symbolSize: 0.6 },
  hidden: { symbol: "rect", dashArrayX: [1, 0], dashArrayY: [2, 6], rotation: Math.PI / 2 },
};
const AXIS_DECALS = [3, 5, 7, 9, 11, 13].map((gap) => ({ ...DECALS.exposed, dashArrayY: [2, gap] }));
const fillOf = (term) => ({
  color: SHARE_COLOURS[term],
  decal: DECALS[term] ? { color: "rgba(0, 0, 0, 0.25)", ...DECALS[term] } : undefined,
});
const AXIS_COLOURS = ["#d55e00", "#b5410b", "#f0804a", "#8c2d04", "#f7a77b", "#6b2100"];
const SIDE_COLOURS = { baseline: "#999999", experiment: "#0072b2" };

const tooltipBase = () => ({
  trigger: "axis", confine: true, axisPointer: { type: "shadow" },
  backgroundColor: colour("card"), borderColor: colour("line"), textStyle: { color: colour("text") },
});

function base(figure) {
  const text = colour("text");
  const soft = colour("soft");
  return {
    animation: false, backgroundColor: colour("back"),
    textStyle: { color: text, fontFamily: getComputedStyle(document.body).fontFamily, fontSize: 12 },
    aria: { enabled: true, label: { description: figure.querySelector("figcaption").textContent } },
    tooltip: tooltipBase(),
    legend: { type: "scroll", top: 0, textStyle: { color: text }, pageTextStyle: { color: soft }, pageIconColor: text },
    grid: { left: narrow() ? 56 : 70, right: narrow() ? 12 : 20, top: 40, bottom: 45 },
  };
}
const axis = (name, more = {}) => ({
  name, nameLocation: "middle", nameGap: 28,
  nameTextStyle: { color: colour("soft") },
  axisLabel: { color: colour("soft") }, axisLine: { lineStyle: { color: colour("line") } },
  splitLine: { lineStyle: { color: colour("line") } },
  ...more,
});
const short = (value) => String(Number(value.toPrecision(2)));
const inMs = () => axis("", { type: "value", axisLabel: { color: colour("soft"), formatter: onAxis } });

const narrow = () => innerWidth < 600;

function show(figure, option, prepared = null) {
  const chart = prepared || echarts.init(figure.querySelector(".drawing"));
  chart.setOption(option, true);
  return chart;
}

// A click on a bar, cell or point that has a place in the timeline goes there.
function follow(chart, hrefOf) {
  chart.off("click");
  chart.on("click", (event) => {
    const href = hrefOf(event);
    if (href) location.hash = href;
  });
}

const OPTIONS = {
  steps(found) {
    let axes = 0;
    return {
      xAxis: axis(words.terms.steps_recorded[0], { type: "category", data: found.steps }),
      yAxis: inMs(),
      series: found.parts.map(({ term, axis: over, ms }) => ({
        name: over ? `${nameOf(term)} ${over}` : nameOf(term),
        type: "bar", stack: "step", data: ms, barMaxWidth: 60,
        itemStyle: over
          ? { color: AXIS_COLOURS[axes % AXIS_COLOURS.length], decal: { color: "rgba(0, 0, 0, 0.25)", ...AXIS_DECALS[axes++ % AXIS_DECALS.length] } }
          : fillOf(term),
      })),
    };
  },
  times(found) {
    const areas = [];
    found.recorded.forEach((recorded, at) => {
      const last = areas[areas.length - 1];
      if (!recorded) return;
      if (last && last[1].at === at - 1) last[1] = { xAxis: String(found.steps[at]), at };
      else areas.push([{ xAxis: String(found.steps[at]) }, { xAxis: String(found.steps[at]), at }]);
    });
    const line = (term, values, type) => ({
      name: nameOf(term), type: "line", symbol: "circle", data: values, showSymbol: values.length < 80,
      lineStyle: { type, width: 1.5 }, sampling: "max",
    });
    const first = line("one_step", found.step_ms, "solid");
    first.markArea = { silent: true, itemStyle: { color: colour("line"), opacity: 0.5 }, data: areas };
    return {
      tooltip: {
        ...tooltipBase(),
        formatter: (points) => [
          points[0].name,
          ...points.map(({ marker, seriesName, value }) => `${marker}${echarts.format.encodeHTML(seriesName)} <b>${inTime(value)}</b>`),
          ...[found.lines[points[0].dataIndex]].filter(Boolean).map(echarts.format.encodeHTML),
        ].join("<br>"),
      },
      xAxis: axis(say("step"), { type: "category", data: found.steps.map(String) }),
      yAxis: inMs(),
      color: [SHARE_COLOURS.computation, SHARE_COLOURS.data_loading],
      series: [first, line("reader_cost", found.reader_ms, "dashed")],
    };
  },
  phases(found) {
    // A phase has its colour; of the two clocks, the CPU's bars have a pattern.
    const bar = (term, values, { decal }) => ({
      name: nameOf(term), type: "bar", barMaxWidth: 22, itemStyle: { color: colour("soft"), decal },
      data: values.map((value, at) => ({ value, itemStyle: { color: phaseOf(found.names[at]) ? shadeOf(phaseOf(found.names[at])) : undefined, decal } })),
    });
    const series = [bar("phase_cpu", found.cpu_ms, fillOf("rest"))];
    if (found.gpu_ms) series.push(bar("phase_gpu", found.gpu_ms, fillOf("computation")));
    return sideways(found.names, series);
  },
  communication(found) {
    const bar = (term, values) => ({
      name: nameOf(term), type: "bar", stack: "axis", data: values, barMaxWidth: 28,
      itemStyle: fillOf(term),
    });
    return sideways(found.axes, [bar("hidden", found.hidden_ms), bar("exposed", found.exposed_ms)]);
  },
  roofline(found) {
    const all = found.families.flatMap(({ points }) => points);
    const extent = (at) => [Math.min(...all.map((point) => point[at])), Math.max(...all.map((point) => point[at]))];
    const [least, most] = extent(0);
    const longest = extent(2)[1];
    const limits = Object.entries(found.peaks).map(([dtype, peak]) => {
      const ridge = peak / found.bytes_per_s;
      const xs = [Math.min(least, ridge) / 2, ridge, Math.max(most, ridge) * 2];
      return {
        name: dtype, type: "line", symbol: "none", silent: true, lineStyle: { type: "dashed", width: 1.5 },
        data: xs.map((x) => [x, Math.min(peak, x * found.bytes_per_s) / 1e12]),
      };
    });
    const signs = { product: "circle", attention: "diamond", pointwise: "triangle", norm: "rect", update: "pin", other: "emptyCircle" };
    const tones = { product: "computation", attention: "exposed", pointwise: "data_loading", norm: "hidden", update: "host_bound", other: "bubble" };
    return {
      tooltip: {
        ...tooltipBase(), trigger: "item",
        formatter: ({ value }) => echarts.format.encodeHTML(
          `${value[3]} · ${value[1].toPrecision(3)} TFLOP/s · ${value[0].toPrecision(3)} FLOP/B · ${inTime(value[2])}`),
      },
      xAxis: axis("FLOP/B", { type: "log", min: "dataMin", max: "dataMax", axisLabel: { color: colour("soft"), formatter: short } }),
      yAxis: axis("TFLOP/s", { type: "log", nameGap: 50, axisLabel: { color: colour("soft"), formatter: short } }),
      series: [
        ...found.families.map(({ term, points }) => {
          const family = term.slice("family_".length);
          return {
            name: nameOf(term), type: "scatter", symbol: signs[family], itemStyle: { color: SHARE_COLOURS[tones[family]], opacity: 0.8 },
            data: points.map(([x, y, ms, name, href]) => [x, y / 1e12, ms, name, href]),
            symbolSize: (value) => 6 + 26 * Math.sqrt(value[2] / longest),
          };
        }),
        ...limits,
      ],
    };
  },
  change_steps(found) {
    const points = (side) => side.steps.map((step, at) => [step, side.ms[at]]);
    return {
      xAxis: axis(say("step"), { type: "value", scale: true, minInterval: 1, axisLabel: { color: colour("soft"), formatter: String } }),
      yAxis: { ...inMs(), scale: true },
      series: sides(points(found.baseline), points(found.experiment)),
    };
  },
};

// Bars from left to right, one row for each name.
const sideways = (names, series) => ({
  grid: { left: narrow() ? 92 : 110, right: 20, top: 40, bottom: 45 },
  xAxis: inMs(),
  yAxis: axis("", { type: "category", data: names, inverse: true }),
  series,
});

function sides(baseline, experiment) {
  return [["baseline", baseline, "dashed", "circle"], ["experiment", experiment, "solid", "triangle"]].map(
    ([side, values, type, symbol]) => ({
      name: nameOf(side), type: "line", data: values, symbol, showSymbol: values.length < 80, sampling: "max",
      lineStyle: { type, width: 1.5 }, itemStyle: { color: SIDE_COLOURS[side] },
    }));
}

const HREFS = {
  steps: (found) => ({ dataIndex }) => found.hrefs[dataIndex],
  communication: (found) => ({ dataIndex }) => found.hrefs[dataIndex],
  roofline: () => ({ value, seriesType }) => seriesType === "scatter" && value[4],
};

function drawChart(figure, found, name) {
  const option = { ...base(figure), ...OPTIONS[name](found) };
  option.tooltip.valueFormatter = inTime;
  const chart = show(figure, option);
  if (HREFS[name]) follow(chart, HREFS[name](found));
  return chart;
}

// The accumulated times of both runs over the step, and their difference; one stage at a time.
function drawTrend(figure, found) {
  let chart = null;
  figure.choose = (at) => {
    figure.chosen = at;
    const one = found[at];
    const last = { baseline: 0, experiment: 0 };
    const difference = one.names.map((_, i) => {
      for (const side of ["baseline", "experiment"]) last[side] = one[`${side}_ms`][i] ?? last[side];
      return last.experiment - last.baseline;
    });
    const option = {
      ...base(figure),
      xAxis: axis("", {
        type: "category", boundaryGap: false, data: one.names.map((name, i) => `${i + 1} ${name === "?" ? say("outside") : name}`),
        axisLabel: { color: colour("soft"), hideOverlap: true, width: 120, overflow: "truncate", formatter: (text) => text.replace(/^\d+ /, "") },
      }),
      yAxis: inMs(),
      series: [
        ...sides(one.baseline_ms, one.experiment_ms).map((line) => ({ ...line, connectNulls: true })),
        {
          name: nameOf("delta"), type: "line", data: difference, showSymbol: false, step: "end",
          lineStyle: { width: 1, type: "dotted", color: colour("worse") }, itemStyle: { color: colour("worse") }, areaStyle: { opacity: 0.12 },
        },
      ],
    };
    option.tooltip.valueFormatter = inTime;
    chart = show(figure, option, chart);
  };
  if (found.length > 1) {
    once(figure, () => [choice(words.page.stage_choice, found.map(({ stage }, at) => [at, stageName(stage)]), (at) => figure.choose(at))]);
  }
  figure.choose(figure.chosen || 0);
  return chart;
}
const stageName = (stage) => (stage === null ? say("whole_step") : say("stage", { stage }));

function drawMemory(figure, found) {
  let chart = null;
  const render = (at) => {
    const one = found[at];
    const most = Math.max(...one.allocated, ...one.reserved.filter((size) => size !== null));
    const [unit, factor] = unitOf(most, BYTES);
    const points = (values) => one.ms.map((ms, i) => [ms, values[i] === null ? null : values[i] / factor]);
    const line = (term, values, type) => ({
      name: nameOf(term), type: "line", step: "end", showSymbol: false, data: points(values),
      lineStyle: { type, width: 1.5 },
    });
    const allocated = line("allocated", one.allocated, "solid");
    allocated.areaStyle = { opacity: 0.15 };
    allocated.markPoint = {
      symbolSize: 44, label: { formatter: () => inBytes(one.peak[1]), color: colour("text"), position: "top" },
      data: [{ coord: [one.peak[0], one.peak[1] / factor], symbol: "triangle", symbolSize: 12 }],
    };
    const option = {
      ...base(figure),
      color: [SHARE_COLOURS.computation, SHARE_COLOURS.exposed],
      grid: { left: 80, right: 30, top: 50, bottom: 45 },
      xAxis: { ...inMs(), max: "dataMax", axisLabel: { color: colour("soft"), formatter: onAxis, showMaxLabel: false } },
      yAxis: axis(unit, { type: "value", nameGap: 50 }),
      series: [allocated, line("reserved", one.reserved, "dashed")],
    };
    option.tooltip.valueFormatter = (value) => (value === null || value === undefined ? "-" : inBytes(value * factor));
    option.tooltip.axisPointer = { type: "line" };
    chart = show(figure, option, chart);
  };
  once(figure, () => [choice(nameOf("rank"), found.map(({ label }, at) => [at, label]), (at) => figure.choose(at))]);
  figure.choose = (at) => { figure.chosen = at; render(at); };
  render(figure.chosen || 0);
  return chart;
}

// Create controls once; redraw charts with each change of theme.
function once(figure, controls) {
  if (!figure.querySelector(".controls")) controlsOf(figure).append(...controls());
}

const LEAST_RANGE = 1.25; // from the lightest to the strongest colour
function drawHeat(figure, found) {
  let chart = null;
  const state = figure.state || (figure.state = { metric: Object.keys(found.metrics)[0], by: "" });
  const rowsOf = () => {
    const values = found.metrics[state.metric];
    if (!state.by) return [found.ranks.map(({ label }) => label), values];
    const groups = new Map();
    found.ranks.forEach(({ at }, rank) => {
      const key = `${state.by}${at[state.by]}`;
      groups.set(key, [...(groups.get(key) || []), values[rank]]);
    });
    const mean = (known) => known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
    return [[...groups.keys()], [...groups.values()].map((rows) =>
      found.steps.map((_, step) => mean(rows.map((row) => row[step]).filter((value) => value !== null))))];
  };
  const render = () => {
    const [labels, rows] = rowsOf();
    const cells = rows.flatMap((row, y) => row.map((value, x) => [x, y, value]).filter((cell) => cell[2] !== null));
    const known = cells.map((cell) => cell[2]);
    const least = known.reduce((low, value) => Math.min(low, value), Infinity);
    const most = known.reduce((high, value) => Math.max(high, value), 0);
    const option = base(figure);
    option.legend = undefined;
    option.tooltip = {
      ...option.tooltip, trigger: "item",
      formatter: ({ value }) => echarts.format.encodeHTML(
        `${labels[value[1]]} · ${say("step")} ${found.steps[value[0]]} · ${nameOf(state.metric)} ${inTime(value[2])}`),
    };
    option.grid = narrow()
      ? { left: 84, right: 12, top: 10, bottom: 107 } : { left: 150, right: 110, top: 10, bottom: 45 };
    const drawing = figure.querySelector(".drawing");
    const cellWidth = (drawing.clientWidth - option.grid.left - option.grid.right) / Math.max(1, found.steps.length);
    const cellHeight = (drawing.clientHeight - option.grid.top - option.grid.bottom) / Math.max(1, rows.length);
    option.xAxis = axis(say("step"), { type: "category", data: found.steps });
    option.yAxis = axis("", {
      type: "category", data: labels, inverse: true,
      axisLabel: { color: colour("soft"), width: narrow() ? 76 : 140, overflow: "truncate" },
    });
    // The labels of its two handles need room beyond the ends of the bar.
    const room = drawing.clientHeight - 40;
    option.visualMap = {
      // Small differences have close, light colours: the whole scale stands for one that matters.
      min: Math.min(least, most), max: Math.max(most, least * LEAST_RANGE), calculable: true, show: least < most,
      ...(narrow() ? { orient: "horizontal", left: "center", bottom: 0 } : { right: 0, top: "middle", itemHeight: Math.min(140, room) }),
      formatter: inTime, textStyle: { color: colour("soft") },
      inRange: { color: [colour("heat-low"), colour("heat-high")] },
    };
    option.series = [{
      type: "heatmap", data: cells, name: nameOf(state.metric), progressive: 0, // a printer waits for no frame
      label: { show: cellHeight >= 14 && cellWidth >= 4 + 7 * Math.max(0, ...known.map((value) => inDigits(value).length)), fontSize: 12, formatter: ({ value }) => inDigits(value[2]) },
      itemStyle: { borderWidth: cells.length < 3000 ? 1 : 0, borderColor: colour("back") },
    }];
    chart = show(figure, option, chart);
    follow(chart, ({ value }) => !state.by && found.ranks[value[1]].hrefs[value[0]]);
  };
  once(figure, () => {
    const made = [choice(say("show"), Object.keys(found.metrics).map((term) => [term, nameOf(term)]),
      (metric) => { state.metric = metric; figure.render(); })];
    if (found.axes.length) {
      made.push(choice(say("group_by"), [["", say("each_rank")], ...found.axes.map((at) => [at, at])],
        (by) => { state.by = by; figure.render(); }));
    }
    return made;
  });
  figure.render = render;
  render();
  return chart;
}
