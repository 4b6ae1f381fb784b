"use strict";
// Mouse, touch and keyboard on the timeline.

const NEAR = 4; // pixels that a pointer may move in a click
const ZOOM = 1.6; // per second of a held key, as a factor of e
const PAN = 1.1; // per second of a held key, in lengths of the view
const TAP = 0.09; // seconds that a short press counts for at least

class TimelineInput {
  constructor(timeline, head, body) {
    Object.assign(this, { timeline, head, body });
    this.pointers = new Map();
    this.held = new Map(); // code of a key that is down -> the key
    for (const canvas of [head, body]) {
      canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
      canvas.addEventListener("pointerdown", (event) => this.down(event, canvas));
      canvas.addEventListener("pointermove", (event) => this.move(event, canvas));
      for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, (event) => this.up(event, canvas));
    }
    body.addEventListener("pointerleave", () => timeline.hover(null));
    body.addEventListener("dblclick", (event) => this.zoomTo(event));
    body.addEventListener("keydown", (event) => this.press(event));
    body.addEventListener("keyup", (event) => this.held.delete(event.code));
    body.addEventListener("blur", () => this.held.clear());
  }

  // With Ctrl (a pinch on a touchpad): zoom. Across, or with Shift: pan. Else the tracks scroll.
  wheel(event) {
    const { timeline } = this;
    const unit = event.deltaMode === 1 ? 16 : 1;
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      timeline.zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY * unit)) / 180), timeline.timeAt(event.offsetX));
      return;
    }
    const across = event.deltaX || (event.shiftKey ? event.deltaY : 0);
    if (Math.abs(across) <= Math.abs(event.shiftKey ? 0 : event.deltaY)) return;
    event.preventDefault();
    timeline.pan(across * unit * timeline.perPixel);
  }

  down(event, canvas) {
    if (event.button > 1) return;
    canvas.setPointerCapture(event.pointerId);
    canvas.focus({ preventScroll: true });
    this.pointers.set(event.pointerId, event.offsetX);
    const { timeline } = this;
    const isMap = canvas === this.head && event.offsetY < MAP;
    const pans = event.pointerType === "touch" || event.shiftKey || event.button === 1 || canvas === this.head;
    this.grip = {
      x: event.offsetX, y: event.offsetY, from: timeline.from, to: timeline.to, moved: false,
      does: isMap ? "map" : pans ? "pan" : "range", at: timeline.timeAt(event.offsetX),
      rank: timeline.rankAt(event.offsetY),
    };
    if (this.pointers.size === 2) this.startPinch();
    if (isMap) this.moveMap(event.offsetX);
    if (event.button === 1) event.preventDefault();
  }

  startPinch() {
    const [one, other] = [...this.pointers.values()];
    const { timeline } = this;
    this.grip = { does: "pinch", apart: Math.max(8, Math.abs(one - other)), from: timeline.from, to: timeline.to, at: timeline.timeAt((one + other) / 2), moved: true };
  }

  move(event, canvas) {
    const { timeline, grip } = this;
    if (!this.pointers.has(event.pointerId)) {
      if (canvas === this.body) timeline.hoverAt(event.offsetX, event.offsetY, event);
      return;
    }
    this.pointers.set(event.pointerId, event.offsetX);
    if (!grip) return;
    if (grip.does === "pinch") {
      if (this.pointers.size === 2) this.pinch();
      return;
    }
    const moved = event.offsetX - grip.x;
    grip.moved ||= Math.abs(moved) > NEAR;
    if (grip.does === "map") this.moveMap(event.offsetX);
    else if (!grip.moved) return;
    else if (grip.does === "pan") timeline.look(grip.from - moved * timeline.perPixel, grip.to - moved * timeline.perPixel);
    else timeline.setRange(grip.at, timeline.timeAt(event.offsetX), grip.rank, false);
  }

  pinch() {
    const [one, other] = [...this.pointers.values()];
    const { timeline, grip } = this;
    const length = (grip.to - grip.from) * grip.apart / Math.max(8, Math.abs(one - other));
    const share = ((one + other) / 2 - timeline.gutter) / (timeline.width - timeline.gutter);
    timeline.look(grip.at - share * length, grip.at + (1 - share) * length);
  }

  up(event, canvas) {
    const { timeline, grip } = this;
    this.pointers.delete(event.pointerId);
    if (!grip || this.pointers.size) return;
    this.grip = null;
    if (event.type === "pointercancel") return;
    if (grip.does === "range" && grip.moved) timeline.setRange(grip.at, timeline.timeAt(event.offsetX), grip.rank, true);
    else if (!grip.moved && canvas === this.body) timeline.pickAt(grip.x, grip.y, event.pointerType === "touch" ? 12 : 3);
  }

  moveMap(x) {
    const { timeline } = this;
    const length = timeline.to - timeline.from;
    const middle = (x - timeline.gutter) / (timeline.width - timeline.gutter) * timeline.store.end;
    timeline.look(middle - length / 2, middle + length / 2);
  }

  zoomTo(event) {
    const spot = this.timeline.spotAt(event.offsetX, event.offsetY, 3);
    if (spot) this.timeline.lookAround(spot);
  }

  press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { timeline } = this;
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    const { selected } = timeline;
    const actions = {
      w: "hold", s: "hold", a: "hold", d: "hold", ArrowLeft: "hold", ArrowRight: "hold", "+": "hold", "=": "hold", "-": "hold",
      ArrowUp: () => timeline.scroll(-3 * ROW_HEIGHT), ArrowDown: () => timeline.scroll(3 * ROW_HEIGHT),
      PageUp: () => timeline.scroll(-timeline.scroller.clientHeight), PageDown: () => timeline.scroll(timeline.scroller.clientHeight),
      Home: () => timeline.look(0, timeline.store.end),
      ".": () => timeline.walk(1), ",": () => timeline.walk(-1), ">": () => timeline.walk(1), "<": () => timeline.walk(-1),
      p: () => timeline.climb(-1), c: () => timeline.climb(1),
      n: () => timeline.nextMatch(event.shiftKey ? -1 : 1),
      f: () => selected && timeline.lookAround(selected), Enter: () => selected && timeline.lookAround(selected),
      r: () => timeline.markRange(),
      x: () => timeline.foldRank(),
      "/": () => timeline.searchBox.focus(),
      Escape: () => { timeline.clearRange(); timeline.clearSelection(); },
    };
    const act = actions[key];
    if (!act) return;
    event.preventDefault();
    if (act === "hold") this.hold(event, key.toLowerCase());
    else act();
  }

  // Move as long as a key is held, evenly at any frame rate; by single steps where motion is unwanted.
  hold({ code, repeat }, key) {
    const isStill = matchMedia("(prefers-reduced-motion: reduce)").matches;
    if (isStill || !repeat) this.step([key], TAP);
    if (isStill) return;
    this.held.set(code, key);
    if (this.isMoving) return;
    this.isMoving = true;
    let before = null;
    const frame = (now) => {
      this.isMoving = this.held.size > 0;
      if (!this.isMoving) return;
      if (before !== null) this.step([...this.held.values()], Math.min(0.1, (now - before) / 1e3));
      before = now;
      requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  }

  step(keys, seconds) {
    const { timeline } = this;
    const any = (...names) => names.some((name) => keys.includes(name));
    const way = any("d", "arrowright") - any("a", "arrowleft");
    const zooms = any("s", "-") - any("w", "+", "=");
    if (way) timeline.pan(way * PAN * seconds * (timeline.to - timeline.from));
    if (zooms) timeline.zoom(Math.exp(zooms * ZOOM * 2 * seconds), timeline.pointerTime ?? undefined);
  }
}
