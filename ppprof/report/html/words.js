"use strict";
// Shared by the page's scripts: data, texts, number formats, one tooltip.
const data = JSON.parse(document.getElementById("data").textContent);
const words = data.words;

// The text of a key; {num:file|files} adds the noun that agrees with a number.
const say = (key, values = {}) => words.page[key].replace(/\{(\w+)(?::([^|}]*)\|([^}]*))?\}/g, (_, name, one, many) =>
  many === undefined ? values[name] : `${values[name]} ${String(values[name]) === "1" ? one : many}`);
const inFull = (number) => number.toLocaleString("en-US");
const nameOf = (term) => words.terms[term][0];

// Numbers have the text that ppprof.units gives them elsewhere on the page: three significant digits.
function withUnit(value, units) {
  if (value === null || value === undefined) return "-";
  const [unit, size] = unitOf(Math.abs(value), units);
  return `${inDigits(value / size)} ${unit}`;
}
const inDigits = (number) =>
  Math.abs(number) < 999.5 ? String(Number(number.toPrecision(3))) : Math.round(number).toLocaleString("en-US");
// The largest unit of [name, size] pairs that a value fills when it is rounded, else the smallest.
const unitOf = (value, units) => units.find(([, size]) => value >= 0.9995 * size) || units[units.length - 1];
const BYTES = [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10], ["B", 1]];
const TIMES = [["s", 1e3], ["ms", 1], ["us", 1e-3], ["ns", 1e-6]];
const inTime = (ms) => withUnit(ms, TIMES);
// The label of a tick, which may need more digits.
function onAxis(ms) {
  const [unit, size] = unitOf(Math.abs(ms), TIMES);
  return ms ? `${Number((ms / size).toPrecision(6))} ${unit}` : "0";
}
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

// Hue, saturation and lightness of each kind of event, on light and on dark ground.
const KIND_COLOURS = {
  step: [215, 18, 82, 40], forward: [208, 72, 76, 42], backward: [152, 42, 68, 36], optimization: [318, 46, 81, 45],
  dataloader: [38, 92, 70, 42], span: [258, 55, 86, 50], operator: [183, 44, 75, 36], inner: [205, 16, 87, 33],
  communication: [20, 88, 72, 47], runtime: [75, 34, 77, 36], kernel: [228, 72, 82, 52], copy: [50, 86, 66, 40],
  python: [292, 26, 84, 41],
};
const DARK_SATURATION = 0.58; // of that on light ground

// The colour of a kind of event or of a phase, the same in all charts; tones 0 to 3 tell neighbours apart.
function shadeOf(kind, tone = 1, dark = false) {
  const [hue, saturation, light, deep] = KIND_COLOURS[kind];
  return `hsl(${hue + 5 * (tone - 1.5)} ${saturation * (dark ? DARK_SATURATION : 1)}% ${(dark ? deep : light) + 2.4 * (tone - 1.5)}%)`;
}
const phaseOf = (name) => (Object.hasOwn(KIND_COLOURS, name.toLowerCase()) ? name.toLowerCase() : null);

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
