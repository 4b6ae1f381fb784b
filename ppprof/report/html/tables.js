"use strict";
// Tables: sorted by a click on a header, searched while typing, limited to one metric or clock,
// copied, and saved as CSV.

const collator = new Intl.Collator(undefined, { numeric: true });

function orderOf(cell) {
  const text = cell.dataset.order === undefined ? cell.textContent : cell.dataset.order;
  if (text === "-" || text === "" || text === "None") return null;
  const number = Number(text.replaceAll(",", ""));
  return Number.isNaN(number) ? text : number;
}

function compared(one, other) {
  if (one === null || other === null) return (one === null) - (other === null);
  if (typeof one === "number" && typeof other === "number") return one - other;
  return collator.compare(String(one), String(other));
}

class DataTable {
  constructor(figure) {
    this.figure = figure;
    this.table = figure.querySelector("table");
    this.heads = [...this.table.tHead.rows[0].cells];
    this.rows = [...this.table.tBodies[0].rows]; // of the whole run
    this.all = Number(figure.dataset.rows);
    this.count = figure.querySelector(".count");
    this.wanted = "";
    this.metric = figure.dataset.shown || "";
    const { clocks } = figure.dataset;
    this.clock = clocks ? clocks.split(" ").at(-1) : "";
    for (const head of this.heads) {
      head.querySelector("button").addEventListener("click", () => this.turn(head));
    }
    this.addTools();
    this.showColumns();
    this.showCount();
  }

  addTools() {
    const tools = this.figure.querySelector(".tools");
    const { metrics, clocks } = this.figure.dataset;
    if (this.rows.length > 5) {
      const label = make("label", { class: "search" });
      const input = searchBox(say("search"));
      input.addEventListener("input", () => { this.wanted = input.value.trim().toLowerCase(); this.filter(); });
      label.append(input);
      tools.prepend(label);
    }
    if (metrics) {
      const names = metrics.split(" ").map((metric) => [metric, words.metrics[metric]]);
      const options = this.metric ? names : [["", say("all")], ...names];
      tools.insertBefore(choice(say("metric"), options, (metric) => { this.metric = metric; this.showColumns(true); }, this.metric), this.count);
    }
    if (clocks) {
      const options = [...clocks.split(" ").map((clock) => [clock, clock.toUpperCase()]), ["", say("all")]];
      tools.insertBefore(choice(say("clock"), options, (clock) => { this.clock = clock; this.showColumns(true); }, this.clock), this.count);
    }
    const live = make("output", { class: "said", "aria-live": "polite" });
    tools.append(makeButton(say("copy"), () => this.copy(live)), makeButton(say("csv"), () => this.save()), live);
  }

  // Show the columns of the chosen metric and clock, and sort by the first of them.
  showColumns(sorts = false) {
    const isShown = (head) =>
      (!head.dataset.metric || !this.metric || head.dataset.metric === this.metric) &&
      (!head.dataset.clock || !this.clock || head.dataset.clock === this.clock);
    this.shown = this.heads.map(isShown);
    this.hideCells(this.heads);
    for (const row of this.table.tBodies[0].rows) this.hideCells([...row.cells]);
    if (!sorts) return;
    const head = this.heads.find((at, i) => this.shown[i] && at.dataset.metric && (at.dataset.kind !== "text") &&
      (!this.figure.dataset.shown || at.querySelector("button").dataset.term === "delta"));
    if (head) this.sort(head, "descending");
  }

  hideCells(cells) { cells.forEach((cell, at) => { cell.hidden = !this.shown[at]; }); }

  turn(head) {
    const first = head.classList.contains("number") ? "descending" : "ascending";
    const other = first === "descending" ? "ascending" : "descending";
    this.sort(head, head.getAttribute("aria-sort") === first ? other : first);
  }

  // Changes are sorted by their size, whatever their sign.
  sort(head, direction) {
    const sign = direction === "descending" ? -1 : 1;
    const at = this.heads.indexOf(head);
    const isChange = ["delta", "delta_ratio", "delta_calls"].includes(head.querySelector("button").dataset.term);
    const body = this.table.tBodies[0];
    const rows = [...body.rows].map((row) => {
      const order = orderOf(row.cells[at]);
      return [isChange && typeof order === "number" ? Math.abs(order) : order, row];
    });
    rows.sort(([one], [other]) =>
      one === null || other === null ? compared(one, other) : sign * compared(one, other));
    body.append(...rows.map(([, row]) => row));
    for (const one of this.heads) one.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", direction);
  }

  filter() {
    for (const row of this.table.tBodies[0].rows) {
      row.hidden = this.wanted !== "" && !textOf(row).toLowerCase().includes(this.wanted);
    }
    this.showCount();
  }

  showCount() {
    const rows = [...this.table.tBodies[0].rows];
    const shown = rows.filter((row) => !row.hidden).length;
    this.count.textContent = say("rows_of", { shown, all: this.all });
  }

  // Show other rows in place of those of the run; null shows those of the run again.
  replace(rows) {
    this.all = rows ? rows.length : Number(this.figure.dataset.rows);
    this.table.tBodies[0].replaceChildren(...(rows || this.rows));
    this.showColumns();
    const sorted = this.heads.find((head) => head.hasAttribute("aria-sort"));
    if (sorted) this.sort(sorted, sorted.getAttribute("aria-sort"));
    this.filter();
  }

  // The visible header and rows, with plain numbers where a number is the whole cell.
  values() {
    const columns = this.heads.map((_, at) => at).filter((at) => this.shown[at]);
    const header = columns.map((at) => {
      const { unit } = this.heads[at].dataset;
      const button = this.heads[at].querySelector("button");
      const of = button.querySelector("small");
      const name = button.firstChild.textContent.trim();
      const more = of ? of.textContent.replace(/ (ms|GB\/s|TFLOP\/s)$/, "").trim() : "";
      return `${name}${more && more !== "ms" && more !== "GB/s" && more !== "TFLOP/s" ? ` ${more}` : ""}${unit ? ` (${unit})` : ""}`;
    });
    const rows = [...this.table.tBodies[0].rows].filter((row) => !row.hidden).map((row) => columns.map((at) => {
      const cell = row.cells[at];
      const isNumber = this.heads[at].classList.contains("number");
      const { order, text } = cell.dataset;
      if (cell.textContent === "-") return "";
      const isPlain = isNumber && text === undefined && order !== undefined && order !== "None";
      return isPlain ? String(Number(order)) : cell.title || cell.textContent;
    }));
    return [header, ...rows];
  }

  async copy(live) {
    const text = this.values().map((row) => row.map((cell) => harmless(cell).replace(/[\t\n\r]/g, " ")).join("\t")).join("\n");
    if (navigator.clipboard) await navigator.clipboard.writeText(text).catch(() => copyOldWay(text));
    else copyOldWay(text);
    live.textContent = say("copied", { num: this.values().length - 1 });
    setTimeout(() => { live.textContent = ""; }, 4000);
  }

  save() {
    const lines = this.values().map((row) => row.map(quoted).join(","));
    const url = URL.createObjectURL(new Blob([`\ufeff${lines.join("\r\n")}\r\n`], { type: "text/csv" }));
    make("a", { href: url, download: `${this.figure.dataset.table || "table"}.csv` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
  }
}

// What a row shows, and the whole names of those that are shortened.
function textOf(row) {
  return [row.textContent, ...[...row.cells].map((cell) => cell.title)].join(" ");
}

// A name that a spreadsheet would take for a formula gets an apostrophe.
function harmless(text) {
  return /^[=+\-@\t\r]/.test(text) && Number.isNaN(Number(text)) ? `'${text}` : text;
}

function quoted(text) {
  const safe = harmless(text);
  return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

function copyOldWay(text) {
  const area = make("textarea", { readonly: "" });
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

const tables = {};
for (const figure of document.querySelectorAll("figure.table")) {
  const table = new DataTable(figure);
  if (figure.dataset.table) tables[figure.dataset.table] = table;
}
