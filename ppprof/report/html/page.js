"use strict";
// Draw each chart when it becomes visible or the browser is idle, and again when the theme changes.
const drawers = { chart: drawChart, heat: drawHeat, memory: drawMemory, lanes: drawLanes, tree: drawTree, flame: drawFlame, trend: drawTrend, timeline: drawTimeline };
const drawn = new Map();

function draw(figure) {
  const { chart, drawnBy } = figure.dataset;
  if (drawn.has(figure)) drawn.get(figure).dispose();
  drawn.set(figure, drawers[drawnBy](figure, data[chart], chart));
  figure.dataset.drawn = "yes";
}

const seen = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) {
    if (isIntersecting && !drawn.has(target)) draw(target);
  }
}, { rootMargin: "400px" });
for (const figure of document.querySelectorAll("figure.chart")) seen.observe(figure);

// Draw invisible charts too: the keyboard reaches them before they scroll into view.
function drawNext() {
  const next = [...document.querySelectorAll("figure.chart")].find((at) => !drawn.has(at));
  if (!next) return;
  draw(next);
  requestIdleCallback(drawNext);
}

let width = innerWidth;
addEventListener("resize", () => {
  if (innerWidth === width) return; // a phone's address bar shows and hides
  width = innerWidth;
  for (const chart of drawn.values()) chart.resize();
});

// Print all charts and definitions, as wide as the paper and in light colours.
let themeOnScreen = null;
addEventListener("beforeprint", () => {
  themeOnScreen = document.documentElement.dataset.theme;
  for (const details of document.querySelectorAll("details:not([open])")) {
    details.open = true;
    details.dataset.closed = "yes";
  }
  document.documentElement.dataset.paper = "yes";
  for (const figure of document.querySelectorAll("figure.chart")) if (!drawn.has(figure)) draw(figure);
  setTheme(false);
  // A chart of several canvases loses all but the last in print.
  for (const [figure, chart] of drawn) {
    if (!chart.renderToCanvas) continue;
    const whole = chart.renderToCanvas({ pixelRatio: 2 });
    whole.className = "printed";
    figure.querySelector(".drawing").append(whole);
  }
});
addEventListener("afterprint", () => {
  for (const details of document.querySelectorAll("details[data-closed]")) details.open = false;
  for (const canvas of document.querySelectorAll(".printed")) canvas.remove();
  delete document.documentElement.dataset.paper;
  setTheme(themeOnScreen === "dark");
});

// A link to a place in the timeline: #t=START-END&rank=R&find=TEXT. The page jumps there: while it scrolls
// smoothly, Chromium does not return to the place of the link at Back.
function showTimeline() {
  if (new URLSearchParams(location.hash.slice(1)).has("t")) document.getElementById("timeline")?.scrollIntoView({ behavior: "instant" });
}
addEventListener("hashchange", showTimeline);
// In a notebook the page is in a frame without an address of its own, where such links would do nothing.
if (location.protocol === "about:") {
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='#']");
    if (!link) return;
    event.preventDefault();
    location.hash = link.getAttribute("href");
  });
}

function setTheme(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  document.getElementById("theme").setAttribute("aria-pressed", String(dark));
  for (const figure of [...drawn.keys()]) draw(figure);
}
const prefersDark = matchMedia("(prefers-color-scheme: dark)");
prefersDark.addEventListener("change", (event) => setTheme(event.matches));
document.getElementById("theme").addEventListener("click", () =>
  setTheme(document.documentElement.dataset.theme !== "dark"));
setTheme(prefersDark.matches);
showTimeline();
document.documentElement.dataset.ready = "yes";
if (window.requestIdleCallback) requestIdleCallback(drawNext);
