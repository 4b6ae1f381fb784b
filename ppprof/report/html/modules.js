"use strict";
// The modules of a step. First their tree as an icicle: the width of a box is the module's time, the modules that it calls lie below it.
//
// The boxes are elements: the keyboard reaches them, and a printer draws them sharply. Boxes narrower
// than 2 pixels are left out; a chosen module is enlarged to the whole width. A click or Enter leads to
// its longest call in the timeline as well.

const BOX_COLOURS = ["#9ecae1", "#fdd0a2", "#a1d99b", "#dadaeb", "#fcbba1", "#c7e9c0", "#e3d3b8", "#bcbddc", "#fee391", "#99d8c9"];
const ROW = 26; // pixels
const colourOf = (name) => (phaseOf(name) ? shadeOf(phaseOf(name)) : BOX_COLOURS[hash(name) % BOX_COLOURS.length]);

class Icicle {
  constructor(figure, found, { onChoose, changed }) {
    Object.assign(this, { figure, found, onChoose, changed });
    this.box = figure.querySelector(".drawing");
    this.box.replaceChildren();
    this.box.classList.add("icicle");
    this.box.setAttribute("role", "tree");
    this.box.setAttribute("aria-label", `${figure.querySelector("figcaption").textContent} ${say("tree_help")}`);
    this.sides = Object.keys(found.sides);
    this.metric = figure.metric || "time";
    this.focus = figure.focusedModule ?? -1;
    this.link();
    this.listen();
    this.arrange();
  }

  // Parents, ends of subtrees, and the children of each module.
  link() {
    const { depth } = this.found;
    const open = [];
    this.parent = depth.map((level, at) => {
      open.length = level;
      open.push(at);
      return level ? open[level - 1] ?? -1 : -1;
    });
    this.children = depth.map(() => []);
    this.roots = [];
    this.end = depth.map((_, at) => at + 1);
    for (let at = depth.length - 1; at >= 0; at--) {
      const above = this.parent[at];
      if (above >= 0) this.end[above] = Math.max(this.end[above], this.end[at]);
    }
    depth.forEach((_, at) => (this.parent[at] >= 0 ? this.children[this.parent[at]] : this.roots).push(at));
  }

  time(at, metric = this.metric) {
    return Math.max(0, ...this.sides.map((side) => this.found.sides[side][metric][at] || 0));
  }

  // Width of each box: its time, but at least the sum of the boxes in it, since one tree can mix CPU
  // and GPU times.
  widths() {
    const widths = this.found.name.map((_, at) => this.time(at));
    for (let at = widths.length - 1; at >= 0; at--) {
      const inside = this.children[at].reduce((sum, child) => sum + widths[child], 0);
      widths[at] = Math.max(widths[at], inside);
    }
    return widths;
  }

  arrange() {
    const widths = this.widths();
    const pixels = Math.max(1, this.box.clientWidth);
    const places = []; // [module, left, width] in shares of the box
    const place = (at, left, scale) => {
      const width = widths[at] * scale;
      if (width * pixels < 2) return;
      places.push([at, left, width]);
      let next = left;
      for (const child of this.children[at]) {
        place(child, next, scale);
        next += widths[child] * scale;
      }
    };
    const above = [];
    for (let at = this.focus >= 0 ? this.parent[this.focus] : -1; at >= 0; at = this.parent[at]) above.unshift(at);
    for (const at of above) places.push([at, 0, 1]);
    const tops = this.focus >= 0 ? [this.focus] : this.roots;
    const total = tops.reduce((sum, at) => sum + widths[at], 0);
    let left = 0;
    for (const at of tops) {
      place(at, left, 1 / (total || 1));
      left += widths[at] / (total || 1);
    }
    this.draw(places);
  }

  draw(places) {
    const { depth } = this.found;
    const deepest = Math.max(0, ...places.map(([at]) => depth[at]));
    this.box.style.height = `${(deepest + 1) * ROW + 4}px`;
    this.boxes = new Map();
    const most = this.changed ? Math.max(...this.found.delta_self.map((delta) => Math.abs(delta || 0)), 1e-9) : 0;
    const items = places.map(([at, left, width]) => {
      const box = make("div", {
        role: "treeitem", tabindex: "-1", "aria-level": depth[at] + 1, "aria-selected": String(at === this.focus),
        "aria-label": this.titleOf(at), class: "module",
      });
      box.append(make("span", {}, this.textOf(at)));
      box.style.left = `${left * 100}%`;
      box.style.width = `calc(${width * 100}% - 1px)`;
      box.style.top = `${depth[at] * ROW + 2}px`;
      if (this.found.name[at] === "?") box.classList.add("outside");
      else if (depth[at] === 0) box.classList.add("step");
      else if (this.changed) this.paintChange(box, at, most);
      else box.style.background = colourOf(this.found.name[at]);
      box.dataset.module = at;
      this.boxes.set(at, box);
      return box;
    });
    this.box.replaceChildren(...items);
    (this.boxes.get(this.focus) || items[0])?.setAttribute("tabindex", "0");
  }

  // Only significant changes have a colour.
  paintChange(box, at, most) {
    const { status, delta_self: delta, is_clear: isClear } = this.found;
    if (status[at] !== "both") box.classList.add(status[at]);
    else if (isClear[at] && delta[at]) {
      box.classList.add(delta[at] > 0 ? "slower" : "faster");
      box.style.setProperty("--strength", `${Math.round(30 + 70 * Math.abs(delta[at]) / most)}%`);
    } else box.classList.add("same");
  }

  nameOf(at) {
    const { name, depth, stage } = this.found;
    if (name[at] === "?") return say("outside");
    if (depth[at]) return name[at];
    return stage[at] === null ? say("whole_step") : say("stage", { stage: stage[at] });
  }

  textOf(at) {
    if (this.found.name[at] === "?") return "";
    const name = this.nameOf(at);
    if (!this.changed) return name;
    const { status, is_clear: isClear } = this.found;
    const delta = this.changeOf(at);
    if (status[at] === "new") return `✚ ${name} (${say("status_new")})`;
    if (status[at] === "gone") return `✖ ${name} (${say("status_gone")})`;
    if (!delta || !isClear[at]) return name;
    return `${delta > 0 ? "▲" : "▼"} ${name} ${delta > 0 ? "+" : "−"}${inTime(Math.abs(delta))}`;
  }

  // The change that is significant or not: of a step its whole time, of a module its own time.
  changeOf(at) {
    if (this.found.depth[at]) return this.found.delta_self[at];
    const [before, after] = this.sides.map((side) => this.found.sides[side].time[at] || 0);
    return after - before;
  }

  titleOf(at) {
    const times = this.sides.map((side) => inTime(this.found.sides[side][this.metric][at])).join(" → ");
    return `${this.textOf(at) || this.nameOf(at)}: ${times}`;
  }

  // The rows of a module: the forward and the gradients.
  passes(at) { return [at, ...this.found.passes[at]]; }

  path(at) {
    const names = [];
    for (let one = at; one >= 0; one = this.parent[one]) names.unshift(this.nameOf(one));
    return names;
  }

  listen() {
    if (this.box.dataset.listens) return; // a change of theme draws again
    this.box.dataset.listens = "yes";
    const moduleAt = (event) => {
      const box = event.target.closest(".module");
      return box ? Number(box.dataset.module) : null;
    };
    const tree = () => this.figure.icicle;
    this.box.addEventListener("click", (event) => {
      const at = moduleAt(event);
      if (at !== null) tree().visit(at);
    });
    this.box.addEventListener("mousemove", (event) => {
      const at = moduleAt(event);
      if (at !== null) tip.show(tree().titleOf(at), event.clientX, event.clientY);
      else tip.hide();
    });
    this.box.addEventListener("mouseleave", () => tip.hide());
    this.box.addEventListener("keydown", (event) => {
      const at = moduleAt(event);
      if (at !== null) tree().press(event, at);
    });
  }

  press(event, at) {
    const visible = (rows) => rows.filter((row) => this.boxes.has(row));
    const siblings = visible(this.parent[at] >= 0 ? this.children[this.parent[at]] : this.roots);
    const beside = (by) => siblings[siblings.indexOf(at) + by];
    const targets = {
      ArrowRight: () => beside(1), ArrowLeft: () => beside(-1), ArrowUp: () => this.parent[at],
      ArrowDown: () => visible(this.children[at])[0],
    };
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      if (event.key === "Enter") this.visit(at);
      else this.choose(at);
    } else if (event.key === "Escape") {
      this.choose(-1);
    } else if (targets[event.key]) {
      event.preventDefault();
      const box = this.boxes.get(targets[event.key]());
      if (!box) return;
      for (const one of this.boxes.values()) one.setAttribute("tabindex", "-1");
      box.setAttribute("tabindex", "0");
      box.focus();
    }
  }

  // Choose a module, and follow the link to its longest call, if the timeline shows it.
  visit(at) {
    this.choose(at);
    this.figure.querySelector(".chosen a")?.click();
  }

  // Enlarge a module; -1 or a step shows the whole step again.
  choose(at) {
    const had = this.box.contains(document.activeElement);
    this.focus = at < 0 || this.parent[at] < 0 && this.roots.length === 1 ? -1 : at;
    this.figure.focusedModule = this.focus;
    this.arrange();
    tip.hide();
    if (had) (this.boxes.get(this.focus) || this.box.firstChild)?.focus();
    this.onChoose(this.focus);
  }

  resize() { this.arrange(); }
  dispose() { this.box.replaceChildren(); }
}

function drawTree(figure, found, name) {
  const changed = name === "change_modules";
  const onChoose = (at) => {
    showModule(figure, at);
    filterByModule(found, at, figure.icicle, changed ? "change_" : "");
  };
  figure.icicle = new Icicle(figure, found, { changed, onChoose });
  const metrics = ["time", "cpu", "gpu"].filter((metric) =>
    Object.values(found.sides).some((side) => side[metric].some((value) => value)));
  once(figure, () => metrics.length < 2 ? [] : [choice(say("tree_metric"),
    metrics.map((metric) => [metric, nameOf(`module_${metric}`)]),
    (metric) => { figure.metric = metric; figure.icicle.metric = metric; figure.icicle.arrange(); })]);
  showModule(figure, figure.icicle.focus);
  return figure.icicle;
}

// Below a tree: the path of the chosen box, a link to its longest call, and what factsOf returns; without a
// choice, how to make one.
function showChosen(figure, at, advice, factsOf) {
  const { icicle } = figure;
  let panel = figure.querySelector(".chosen");
  if (!panel) {
    panel = make("div", { class: "chosen", "aria-live": "polite" });
    figure.append(panel);
  }
  if (at < 0) {
    panel.replaceChildren(make("p", { class: "about" }, say(advice)));
    return;
  }
  const title = make("p", { class: "path" });
  icicle.path(at).forEach((name, depth) => title.append(depth ? " › " : "", make("b", {}, name)));
  title.append(" ", makeButton(say("whole_step"), () => icicle.choose(-1)));
  const href = icicle.found.href[at];
  if (href) title.append(" ", make("a", { href }, say("see")));
  panel.replaceChildren(title, factsOf());
}

const showModule = (figure, at) => showChosen(figure, at, "choose_module", () => numbersOf(figure.icicle, at));

// The table with the numbers of a module.
function numbersOf(icicle, at) {
  const { found, sides, changed } = icicle;
  const table = make("table");
  const head = table.createTHead().insertRow();
  const columns = changed ? [...sides.map(nameOf), nameOf("delta"), nameOf("delta_ratio")] : [""];
  for (const text of changed ? ["", ...columns] : []) head.append(make(text ? "th" : "td", text ? { scope: "col", class: "number" } : {}, text));
  const body = table.createTBody();
  const values = ["time", "self", "cpu", "gpu", "calls"];
  if (found.passes[at].length) values.unshift("passes");
  for (const value of values) {
    const numbers = sides.map((side) => value === "passes"
      ? icicle.passes(at).reduce((sum, row) => sum + (found.sides[side].time[row] || 0), 0)
      : found.sides[side][value][at]);
    if (!numbers.some((number) => number)) continue;
    const shown = (number) => value === "calls" ? (number === null ? "-" : inDigits(number)) : inTime(number);
    const row = body.insertRow();
    row.append(make("th", { scope: "row" }, nameOf(value === "calls" ? "calls" : `module_${value}`)));
    for (const number of numbers) row.append(make("td", { class: "number" }, shown(number)));
    if (!changed) continue;
    const [before, after] = numbers.map((number) => number || 0);
    const sign = after > before ? "+" : after < before ? "−" : "";
    row.append(make("td", { class: "number" }, sign + shown(Math.abs(after - before))));
    row.append(make("td", { class: "number" }, before ? `${sign}${(100 * Math.abs(after - before) / before).toFixed(1)}%` : "-"));
  }
  return table;
}

// The operators and kernels of a chosen module, shown in the tables of operators and kernels. A chip
// there and above the timeline, to which a click on a module leads, names the module and undoes the choice.

// Sums of each name over the rows of a module and all modules below it: name -> {calls, cpu_total...}.
function workIn(work, kind, icicle, rows) {
  const sums = new Map();
  const isIn = (module) => rows.some((row) => module >= row && module < icicle.end[row]);
  for (let at = 0; at < work.module.length; at++) {
    if (work.kind[at] !== kind || !isIn(work.module[at])) continue;
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
      [side, workIn(work, kind, icicle, icicle.passes(at))]));
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
  chip.append(" ", makeButton(say("all_modules"), () => icicle.choose(-1)));
  tools.prepend(chip);
}

const FORMATS = {
  ms: (value) => value.toLocaleString("en-US", { minimumFractionDigits: 3, maximumFractionDigits: 3 }),
  ratio: (value) => `${(100 * value).toFixed(1)}%`,
  number: inDigits,
};

const linkOf = (view, name) =>
  view?.rows.find((row) => (row.cells[0].title || row.cells[0].textContent) === name)?.cells[0].querySelector("a");

// A row of a table: the name with its link, and a cell for each other column.
function makeRow(view, name, valueOf) {
  const row = make("tr");
  const link = linkOf(view, name) || linkOf(tables[view.figure.dataset.table.replace("change_", "")], name);
  view.heads.forEach((head, at) => {
    const { term } = head.querySelector("button").dataset;
    const isChange = term === "delta" || term === "delta_ratio";
    const cell = make("td", head.classList.contains("number") ? { class: "number" } : {});
    if (at === 0) {
      cell.append(link ? make("a", { href: link.getAttribute("href") }, link.textContent) : name);
      if (link && link.textContent !== name) cell.title = name;
    } else {
      const value = valueOf(head, term);
      const isNumber = typeof value === "number";
      cell.textContent = isNumber ? (isChange && value > 0 ? "+" : "") + FORMATS[head.dataset.kind](value) : value ?? "-";
      // The unit of the page's other rows: nanoseconds.
      if (isNumber) cell.dataset.order = head.dataset.kind === "ms" ? value * 1e6 : value;
      if (isChange) cell.classList.add("same");
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
