"use strict";
// The operators and kernels of a chosen module, shown in the tables of operators and kernels. A chip
// there and above the timeline, to which a click on a module leads, names the module and undoes the choice.

// Sums of each name over a module and all modules below it: name -> {calls, cpu_total...}.
function workIn(work, kind, from, to) {
  const sums = new Map();
  for (let at = 0; at < work.module.length; at++) {
    if (work.kind[at] !== kind || work.module[at] < from || work.module[at] >= to) continue;
    const name = work.names[work.name[at]];
    const sum = sums.get(name) || { calls: 0, cpu_total: 0, cpu_self: 0, gpu_total: 0, gpu_self: 0 };
    for (const value of Object.keys(sum)) sum[value] += work[value][at];
    sums.set(name, sum);
  }
  return sums;
}

function filterByModule(found, at, icicle, prefix) {
  const chosen = at < 0 ? null : icicle;
  const timeline = document.getElementById("timeline")?.querySelector("figure.chart");
  if (timeline) showChip(toolsOf(timeline), prefix, chosen, at);
  for (const kind of ["operators", "kernels"]) {
    const view = tables[prefix + kind];
    if (!view) continue;
    showChip(toolsOf(view.figure), prefix, chosen, at);
    if (at < 0) {
      view.replace(null);
      continue;
    }
    const sides = Object.fromEntries(Object.entries(found.work).map(([side, work]) =>
      [side, workIn(work, kind, at, icicle.end[at])]));
    view.replace(prefix ? changedRows(view, sides) : runRows(view, sides.experiment));
  }
}

function toolsOf(figure) {
  if (!figure.querySelector(".tools")) figure.querySelector(".drawing").before(make("div", { class: "tools" }));
  return figure.querySelector(".tools");
}

// Above the timeline, there may be a chip of the run's modules, and one of the comparison's.
function showChip(tools, prefix, icicle, at) {
  tools.querySelector(`.chip[data-tree="${prefix}"]`)?.remove();
  if (!icicle) return;
  const chip = make("span", { class: "chip", "data-tree": prefix }, say("module", { name: icicle.path(at).slice(1).join(" › ") || icicle.nameOf(at) }));
  const all = make("button", { type: "button" }, say("all_modules"));
  all.addEventListener("click", () => icicle.choose(-1));
  chip.append(" ", all);
  tools.prepend(chip);
}

const FORMATS = {
  ms: (value) => value.toLocaleString("en-US", { minimumFractionDigits: 3, maximumFractionDigits: 3 }),
  ratio: (value) => `${(100 * value).toFixed(1)}%`,
  number: (value) => value.toLocaleString("en-US", { maximumSignificantDigits: 3 }),
};

const linkOf = (view, name) =>
  view?.rows.find((row) => row.cells[0].textContent === name)?.cells[0].querySelector("a");

// A row of a table: the name with its link, and a cell for each other column.
function makeRow(view, name, valueOf) {
  const row = make("tr");
  const link = linkOf(view, name) || linkOf(tables[view.figure.dataset.table.replace("change_", "")], name);
  view.heads.forEach((head, at) => {
    const cell = make("td", head.classList.contains("number") ? { class: "number" } : {});
    if (at === 0) {
      cell.append(link ? make("a", { href: link.getAttribute("href") }, name) : name);
    } else {
      const value = valueOf(head, head.querySelector("button").dataset.term);
      const isNumber = typeof value === "number";
      const signed = isNumber && value > 0 && ["delta", "delta_ratio"].includes(head.querySelector("button").dataset.term);
      cell.textContent = isNumber ? (signed ? "+" : "") + FORMATS[head.dataset.kind](value) : value ?? "-";
      // The unit of the page's other rows: nanoseconds.
      if (isNumber) cell.dataset.order = head.dataset.kind === "ms" ? value * 1e6 : value;
      if (["delta", "delta_ratio"].includes(head.querySelector("button").dataset.term)) cell.classList.add("same");
    }
    row.append(cell);
  });
  return row;
}

function runRows(view, work) {
  const total = (value) => [...work.values()].reduce((sum, one) => sum + one[value], 0) || 1;
  const totals = { cpu: total("cpu_self"), gpu: total("gpu_self") || 1, kernel: total("gpu_total") };
  return [...work].map(([name, sum]) => makeRow(view, name, (head, term) => {
    const { clock } = head.dataset;
    if (term in sum) return sum[term];
    if (term === "mean_call") return sum.calls ? sum[`${clock || "gpu"}_total`] / sum.calls : null;
    if (term === "mean_dur") return sum.calls ? sum.gpu_total / sum.calls : null;
    if (term === "cpu_ratio") return sum.cpu_self / totals.cpu;
    if (term === "gpu_ratio") return clock ? sum.gpu_self / totals.gpu : sum.gpu_total / totals.kernel;
    return null; // the longest call of a module is unknown
  }));
}

function changedRows(view, { baseline = new Map(), experiment = new Map() }) {
  const names = new Set([...baseline.keys(), ...experiment.keys()]);
  return [...names].map((name) => makeRow(view, name, (head, term) => {
    const [one, other] = [baseline.get(name), experiment.get(name)];
    if (term === "status") return one && other ? "" : say(one ? "status_gone" : "status_new");
    const [before, after] = [one, other].map((sum) => (sum ? sum[head.dataset.metric] : 0));
    if (term === "baseline") return before;
    if (term === "experiment") return after;
    if (term === "delta") return after - before;
    if (term === "delta_ratio") return before ? (after - before) / before : null;
    return null; // the noise of a part of the modules is unknown
  }));
}
