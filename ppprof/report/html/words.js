"use strict";
// Shared by the page's scripts: data, texts, number formats, one tooltip.
const data = JSON.parse(document.getElementById("data").textContent);
const words = data.words;

const say = (key, values = {}) =>
  words.page[key].replace(/\{(\w+)\}/g, (_, name) => values[name]);
const nameOf = (term) => words.terms[term][0];

function withUnit(value, units) {
  if (value === null || value === undefined) return "-";
  const [unit, factor] = unitOf(Math.abs(value), units);
  const scaled = value / factor;
  const digits = Math.abs(scaled) >= 100 ? 0 : Math.abs(scaled) >= 10 ? 1 : 2;
  return `${scaled.toFixed(digits)} ${unit}`;
}
// The largest unit of [name, size] pairs that a value fills, else the smallest.
const unitOf = (size, units) => units.find(([, least]) => size >= least) || units[units.length - 1];
const BYTES = [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10], ["B", 1]];
const inTime = (ms) => withUnit(ms, [["s", 1e3], ["ms", 1], ["us", 1e-3], ["ns", 1e-6]]);
const inBytes = (bytes) => withUnit(bytes, BYTES);

const MOST_SHOWN = 2000; // letters of a tooltip: names can have millions

// One tooltip for all terms with a definition, by mouse and by keyboard; Escape hides it.
const tip = {
  element: document.getElementById("tip"),
  of: null,
  show(text, x, y) {
    this.element.textContent = text.length > MOST_SHOWN ? `${text.slice(0, MOST_SHOWN)}…` : text;
    this.element.hidden = false;
    const { width, height } = this.element.getBoundingClientRect();
    const left = Math.min(x + 12, innerWidth - width - 8);
    const top = y + 18 + height > innerHeight ? y - height - 8 : y + 18;
    this.element.style.left = `${Math.max(8, left)}px`;
    this.element.style.top = `${Math.max(8, top)}px`;
  },
  hide() {
    this.element.hidden = true;
    if (this.of) this.of.removeAttribute("aria-describedby");
    this.of = null;
  },
};

function definitionOf(element) {
  const defined = element.closest("[data-term]");
  if (defined) return [defined, words.terms[defined.dataset.term][1]];
  const cell = element.closest("td");
  if (!cell || cell.cellIndex === 0) return null;
  const head = cell.closest("table").tHead?.rows[0];
  const button = head?.cells[cell.cellIndex]?.querySelector("[data-term]");
  return button ? [cell, words.terms[button.dataset.term][1]] : null;
}

function explain(event) {
  const found = event.target.closest && definitionOf(event.target);
  if (!found) return;
  const [element, text] = found;
  tip.hide();
  const box = element.getBoundingClientRect();
  tip.show(text, box.left, box.bottom - 14);
  tip.of = element;
  element.setAttribute("aria-describedby", "tip");
}
document.addEventListener("mouseover", explain);
document.addEventListener("focusin", explain);
document.addEventListener("focusout", () => tip.hide());
document.addEventListener("mouseout", (event) => {
  if (tip.of && tip.of.contains(event.target)) tip.hide();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") tip.hide();
});

// A number for a text, to choose a colour by.
function hash(text) {
  let sum = 7;
  for (let at = 0; at < text.length; at++) sum = (sum * 31 + text.charCodeAt(at)) >>> 0;
  return sum;
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

function make(tag, attributes = {}, text = "") {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.textContent = text;
  return element;
}

function makeButton(text, onClick, attributes = {}) {
  const button = make("button", { type: "button", ...attributes }, text);
  button.addEventListener("click", onClick);
  return button;
}

const searchBox = (label, attributes = {}) =>
  make("input", { type: "search", autocomplete: "off", spellcheck: "false", placeholder: label, "aria-label": label, ...attributes });

// A labelled choice among [value, text] pairs.
function choice(label, options, onChange, chosen = options[0]?.[0]) {
  const whole = make("label", {}, `${label} `);
  const select = make("select");
  for (const [value, text] of options) select.append(make("option", { value }, text));
  select.value = chosen;
  select.addEventListener("change", () => onChange(select.value));
  whole.append(select);
  return whole;
}

function controlsOf(figure) {
  const controls = make("div", { class: "controls" });
  figure.insertBefore(controls, figure.querySelector(".drawing"));
  return controls;
}
