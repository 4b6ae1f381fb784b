"use strict";
// Spans in rows on a canvas: a pipeline; zoomed by mouse and keyboard.
//
// A model is { rows: [{label}], spans: row -> [{start, end, text, fill, tip}] sorted by start }, times in
// nanoseconds. Only visible spans are drawn; spans narrower than a pixel are drawn once per pixel.

const LARGEST = 720; // pixels of height; larger canvases scroll
const LANE = 18; // pixels of a row
const TOP = 24; // pixels of the axis

class Lanes {
  constructor(figure, model) {
    Object.assign(this, { figure, model });
    this.box = figure.querySelector(".drawing");
    this.box.replaceChildren();
    this.canvas = make("canvas", { tabindex: 0, role: "img", "aria-label": `${figure.querySelector("figcaption").textContent} ${say("lanes_help")}` });
    this.live = make("p", { class: "controls", "aria-live": "polite" });
    figure.querySelector(".live")?.remove();
    this.live.classList.add("live");
    this.box.append(this.canvas);
    figure.append(this.live);
    this.gutter = Math.min(260, 24 + 7 * Math.max(...model.rows.map(({ label }) => label.length)));
    this.end = Math.max(1, ...model.spans.map((row) => row.reduce((end, span) => Math.max(end, span.end), 0)));
    this.from = 0;
    this.to = this.end;
    this.chosen = null;
    this.listen();
    this.resize();
  }

  listen() {
    const { canvas } = this;
    let grip = null;
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      this.zoom(event.deltaY > 0 ? 1.25 : 0.8, this.timeAt(event.offsetX));
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      grip = { x: event.offsetX, from: this.from, moved: false };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (grip) {
        const moved = event.offsetX - grip.x;
        grip.moved ||= Math.abs(moved) > 3;
        if (grip.moved) this.look(grip.from - moved * this.perPixel, this.to - this.from);
        return;
      }
      const span = this.spanAt(event.offsetX, event.offsetY);
      if (span) tip.show(span.tip(), event.clientX, event.clientY);
      else tip.hide();
    });
    canvas.addEventListener("pointerup", (event) => {
      const picks = grip && !grip.moved;
      grip = null;
      const span = picks && this.spanAt(event.offsetX, event.offsetY);
      if (span) this.choose(span);
    });
    canvas.addEventListener("pointerleave", () => tip.hide());
    canvas.addEventListener("keydown", (event) => this.press(event));
  }

  press(event) {
    const length = this.to - this.from;
    const actions = {
      ArrowLeft: () => this.look(this.from - length / 8, length),
      ArrowRight: () => this.look(this.from + length / 8, length),
      "+": () => this.zoom(0.7), "=": () => this.zoom(0.7), "-": () => this.zoom(1.4),
      Home: () => this.look(0, this.end),
      ArrowDown: () => this.step(1, 0), ArrowUp: () => this.step(-1, 0),
      ">": () => this.step(0, 1), ".": () => this.step(0, 1), "<": () => this.step(0, -1), ",": () => this.step(0, -1),
      Enter: () => this.chosen && this.choose(this.chosen.span),
    };
    const act = actions[event.key];
    if (!act || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    act();
  }

  // Move the selection to the row below or above, or along the row.
  step(down, along) {
    const rows = this.model.spans;
    let { row, at } = this.chosen || { row: 0, at: -along };
    if (down) {
      const middle = this.chosen ? (this.chosen.span.start + this.chosen.span.end) / 2 : this.from;
      if (this.chosen) row = Math.min(rows.length - 1, Math.max(0, row + down));
      at = Math.max(0, lastBefore(rows[row], middle));
    } else {
      at = Math.min(rows[row].length - 1, Math.max(0, at + along));
    }
    const span = rows[row][at];
    if (!span) return;
    this.chosen = { row, at, span };
    if (span.start > this.to || span.end < this.from) this.look(span.start - (this.to - this.from) / 2, this.to - this.from);
    this.announce(span);
    this.paint();
  }

  choose(span) {
    const row = this.model.spans.findIndex((spans) => spans.includes(span));
    this.chosen = { row, at: this.model.spans[row].indexOf(span), span };
    this.announce(span);
    this.paint();
  }

  announce(span) { this.live.textContent = `${say("chosen")}: ${span.tip().replaceAll("\n", " · ")}`; }

  get perPixel() { return (this.to - this.from) / Math.max(1, this.width - this.gutter); }
  timeAt(x) { return this.from + (x - this.gutter) * this.perPixel; }

  zoom(factor, around = (this.from + this.to) / 2) {
    const length = Math.min(this.end, Math.max(this.end / 1e6, (this.to - this.from) * factor));
    const share = (around - this.from) / (this.to - this.from);
    this.look(around - share * length, length);
  }

  look(from, length) {
    this.from = Math.max(0, Math.min(from, this.end - length));
    this.to = this.from + length;
    this.paint();
  }

  spanAt(x, y) {
    const spans = this.model.spans[Math.floor((y - TOP) / LANE)];
    if (!spans || x < this.gutter) return null;
    const time = this.timeAt(x);
    const near = this.perPixel * 2;
    let best = null;
    for (let at = lastBefore(spans, time + near); at >= 0 && at > lastBefore(spans, time + near) - 4; at--) {
      const span = spans[at];
      if (span.end + near >= time && (!best || span.end - span.start > best.end - best.start)) best = span;
    }
    return best;
  }

  resize() {
    this.width = this.box.clientWidth;
    this.height = TOP + this.model.rows.length * LANE + 4;
    this.box.style.height = `${Math.min(this.height + 2, LARGEST)}px`;
    const scale = devicePixelRatio || 1;
    this.canvas.width = this.width * scale;
    this.canvas.height = this.height * scale;
    this.canvas.style.width = `${this.width}px`;
    this.canvas.style.height = `${this.height}px`;
    this.pen = this.canvas.getContext("2d");
    this.pen.setTransform(scale, 0, 0, scale, 0, 0);
    this.paintNow(); // at once: a printer waits for no frame
  }

  paint() {
    if (this.waiting) return;
    this.waiting = requestAnimationFrame(() => {
      this.waiting = null;
      this.paintNow();
    });
  }

  paintNow() {
    const { pen } = this;
    const [text, soft, line] = ["text", "soft", "line"].map(colour);
    pen.clearRect(0, 0, this.width, this.height);
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    this.paintAxis(soft, line);
    this.model.rows.forEach(({ label }, row) => {
      const y = TOP + row * LANE;
      pen.fillStyle = text;
      pen.fillText(shortened(pen, label, this.gutter - 12), 6, y + LANE / 2);
      pen.fillStyle = line;
      pen.fillRect(this.gutter, y + LANE - 1, this.width - this.gutter, 0.5);
      this.paintRow(this.model.spans[row], y);
    });
  }

  paintRow(spans, y) {
    const { pen, gutter } = this;
    const perTime = 1 / this.perPixel;
    let painted = -1; // the last pixel painted for a narrow span
    for (let at = Math.max(0, lastBefore(spans, this.from)); at < spans.length; at++) {
      const span = spans[at];
      if (span.start > this.to) break;
      if (span.end < this.from) continue;
      const left = gutter + Math.max(0, (span.start - this.from) * perTime);
      const right = Math.min(this.width, gutter + (span.end - this.from) * perTime);
      if (right - left < 1) {
        if (Math.floor(left) === painted) continue;
        painted = Math.floor(left);
      }
      pen.fillStyle = span.fill;
      pen.fillRect(left, y + 1, Math.max(1, right - left - (right - left > 3 ? 0.5 : 0)), LANE - 3);
      if (this.chosen && this.chosen.span === span) {
        pen.strokeStyle = colour("text");
        pen.lineWidth = 2;
        pen.strokeRect(left, y + 1, Math.max(2, right - left), LANE - 3);
      }
      if (right - left > 18 && span.text) {
        pen.fillStyle = "#101418";
        const words = shortened(pen, span.text, right - left - 6);
        if (words.length > 1 || span.text.length === 1) pen.fillText(words, left + 3, y + LANE / 2);
      }
    }
  }

  paintAxis(soft, line) {
    const { pen } = this;
    const tick = tickStep((this.to - this.from) / Math.max(2, (this.width - this.gutter) / 110));
    for (let time = Math.ceil(this.from / tick) * tick; time <= this.to; time += tick) {
      const x = this.gutter + (time - this.from) / this.perPixel;
      pen.fillStyle = line;
      pen.fillRect(x, 16, 0.5, this.height);
      pen.fillStyle = soft;
      pen.fillText(onAxis(time / 1e6), Math.min(x + 2, this.width - 60), 9);
    }
  }

  dispose() {
    if (this.waiting) cancelAnimationFrame(this.waiting);
    this.live.remove();
    this.box.replaceChildren();
  }
}

// The position of the last span whose start, or other key, is not after a time; -1 if there is none.
function lastBefore(spans, time, key = "start") {
  let low = 0;
  let high = spans.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (spans[middle][key] <= time) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

// A round number, at least as large as a rough one: 1, 2 or 5 times a power of ten.
function tickStep(rough) {
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((times) => times * power).find((size) => size >= rough);
}

function shortened(pen, text, room) {
  if (pen.measureText(text).width <= room) return text;
  let keep = Math.floor(text.length * room / Math.max(1, pen.measureText(text).width)) - 1;
  while (keep > 0 && pen.measureText(`${text.slice(0, keep)}…`).width > room) keep--;
  return keep > 0 ? `${text.slice(0, keep)}…` : "";
}

function zoomButtons(figure) {
  const button = (key, sign, act) => makeButton(sign, () => act(figure.lanes), { "aria-label": say(key), title: say(key) });
  once(figure, () => [
    button("zoom_in", "+", (lanes) => lanes.zoom(0.6)), button("zoom_out", "−", (lanes) => lanes.zoom(1.6)),
    button("reset", "⤢", (lanes) => lanes.look(0, lanes.end)),
  ]);
}

const BUBBLE = "#d5d9de";

// A pipeline: columns of `_spans` in charts.py.
function drawLanes(figure, found) {
  const spans = found.rows.map(() => []);
  for (let at = 0; at < found.row.length; at++) {
    const start = found.start[at];
    const end = start + found.dur[at];
    const name = found.names[found.name[at]];
    const category = found.categorys[found.category[at]];
    spans[found.row[at]].push({
      start, end, text: name, fill: phaseOf(category) ? shadeOf(phaseOf(category)) : BUBBLE,
      tip: () => `${name}\n${category} · ${inTime((end - start) / 1e6)}`,
    });
  }
  zoomButtons(figure);
  figure.lanes = new Lanes(figure, { rows: found.rows, spans });
  return figure.lanes;
}
