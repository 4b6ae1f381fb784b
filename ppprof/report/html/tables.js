"use strict";
// Sort tables by a click on a header; filter them while typing.
function orderOf(cell) {
  const text = cell.dataset.order === undefined ? cell.textContent : cell.dataset.order;
  if (text === "-" || text === "") return null;
  const number = Number(text);
  return Number.isNaN(number) ? text : number;
}

function compared(one, other) {
  if (one === null || other === null) return (one === null) - (other === null);
  if (typeof one === "number" && typeof other === "number") return one - other;
  return String(one).localeCompare(String(other));
}

function sortBy(table, head) {
  const falls = head.getAttribute("aria-sort") !== "descending" && head.classList.contains("number");
  const rises = head.getAttribute("aria-sort") !== "ascending";
  const sign = head.classList.contains("number") ? (falls ? -1 : 1) : rises ? 1 : -1;
  const at = head.cellIndex;
  const body = table.tBodies[0];
  const rows = [...body.rows].map((row) => [orderOf(row.cells[at]), row]);
  rows.sort(([one], [other]) =>
    one === null || other === null ? compared(one, other) : sign * compared(one, other));
  body.append(...rows.map(([, row]) => row));
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", sign < 0 ? "descending" : "ascending");
}

function search(table, wanted, output) {
  const text = wanted.trim().toLowerCase();
  let shown = 0;
  for (const row of table.tBodies[0].rows) {
    row.hidden = text !== "" && !row.textContent.toLowerCase().includes(text);
    shown += !row.hidden;
  }
  output.textContent = text ? say("rows_of", { shown, all: table.tBodies[0].rows.length }) : "";
}

for (const figure of document.querySelectorAll("figure.table")) {
  const table = figure.querySelector("table");
  for (const head of table.tHead.rows[0].cells) {
    head.querySelector("button").addEventListener("click", () => sortBy(table, head));
  }
  const input = figure.querySelector("input");
  if (input) {
    input.addEventListener("input", () => search(table, input.value, figure.querySelector("output")));
  }
}
