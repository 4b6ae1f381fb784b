"use strict";
// Draws the timeline: the minimap and the axis on one canvas, ranks and tracks on another.

const MAP = 46; // height of the minimap
const AXIS = 24;
const MOST_EXACT = 220_000; // events drawn one by one; beyond, the thinned tracks are drawn
const FONT = "12px system-ui, -apple-system, 'Segoe UI', 'Noto Sans', 'PingFang SC', 'Microsoft YaHei', sans-serif";

class TimelinePainter {
  constructor(timeline, head, body) {
    Object.assign(this, { timeline, head, body });
    this.buckets = new Map();
    this.labels = [];
    this.frames = 0;
    this.mostExact = MOST_EXACT;
  }

  // Read the theme's colours; resize both canvases to their boxes.
  refresh() {
    const dark = document.documentElement.dataset.theme === "dark";
    this.ink = dark ? "#f1f4f8" : "#14181d";
    this.colours = Object.fromEntries(["back", "card", "text", "soft", "line", "accent"].map((name) => [name, colour(name)]));
    this.shades = this.timeline.store.kinds.map((kind) => [0, 1, 2, 3].map((tone) => shadeOf(kind, tone, dark)));
    this.scale = devicePixelRatio || 1;
    for (const canvas of [this.head, this.body]) {
      canvas.width = Math.round(canvas.clientWidth * this.scale);
      canvas.height = Math.round(canvas.clientHeight * this.scale);
    }
    this.mapImage = null;
  }

  request() {
    this.waiting ||= requestAnimationFrame(() => {
      this.waiting = null;
      this.paint();
    });
  }

  pen(canvas) {
    const pen = canvas.getContext("2d");
    pen.setTransform(this.scale, 0, 0, this.scale, 0, 0);
    pen.font = FONT;
    pen.textBaseline = "middle";
    pen.clearRect(0, 0, canvas.clientWidth, canvas.clientHeight);
    return pen;
  }

  paint() {
    const { timeline } = this;
    const [width, height] = [this.body.clientWidth, this.body.clientHeight];
    if (!this.timeline.isReady || !this.head.width || !width) return; // not shown
    this.width = width;
    this.height = height;
    this.frames += 1;
    this.perTime = (width - timeline.gutter) / (timeline.to - timeline.from);
    this.top = timeline.scroller.scrollTop;
    const pen = this.pen(this.body);
    const lines = timeline.stack.lines.filter(({ y, height: tall }) => y + tall > this.top && y < this.top + height);
    this.paintGrid(pen);
    this.spots = []; // drawn spans for the pointer, by line
    pen.save();
    pen.beginPath();
    pen.rect(timeline.gutter, 0, width - timeline.gutter, height);
    pen.clip();
    for (const [line, exact] of this.chooseDetail(lines)) this.paintTrack(pen, line, exact);
    for (const line of lines) {
      if (line.curve) this.paintCurve(pen, line);
      else if (!line.track) this.paintRankLine(pen, line);
    }
    this.paintPath(pen);
    this.paintSelection(pen);
    this.paintArrows(pen);
    pen.restore();
    this.paintRange(pen);
    for (const line of lines) this.paintGutter(pen, line);
    this.paintHead();
  }

  x(time) { return this.timeline.gutter + (time - this.timeline.from) * this.perTime; }

  // [line, chunks] of the visible tracks; chunks is null for a track that is drawn thinned: because too
  // many events are visible, or because its chunks are not unpacked yet.
  chooseDetail(lines) {
    const { store, from, to } = this.timeline;
    const tracks = lines.filter((line) => line.track).map((line) => {
      const [first, last] = store.chunksIn(line.track, from, to);
      const chunks = line.track.chunks.slice(first, last);
      return [line, chunks, chunks.reduce((sum, chunk) => sum + chunk.num, 0)];
    });
    let left = this.mostExact;
    this.isExact = true;
    return tracks.sort((one, other) => one[2] - other[2]).map(([line, chunks, num]) => {
      left -= num;
      const all = left >= 0 ? chunks.map((chunk) => store.peek(chunk)) : [null];
      if (all.includes(null)) this.isExact = false;
      return [line, all.includes(null) ? null : chunks.map((chunk, at) => [chunk, all[at]])];
    });
  }

  paintTrack(pen, line, chunks) {
    const { track } = line;
    this.clear(track.rows);
    if (!chunks) this.collect(track, track.overview, line, null, 0);
    else chunks.forEach(([chunk, events], at) => this.collect(track, events, line, chunk, at > 0 ? chunk.repeated : 0));
    this.flush(pen, track.rank);
  }

  clear(rows) {
    this.lastPixel = new Int32Array(rows + 1).fill(-1);
    for (const bucket of this.buckets.values()) bucket.length = 0;
    this.labels.length = 0;
  }

  // Sort the visible events of a chunk into buckets by colour; at most one narrow event per pixel.
  collect(track, events, { y: top, rows }, chunk, first) {
    const { from, to, gutter } = this.timeline;
    const { start, dur, sig, depth, num } = events;
    const { kind, tone } = track.rank.signatures;
    const { perTime, width, buckets, lastPixel } = this;
    const dims = this.timeline.maskOf(track.rank);
    const y = top - this.top;
    const isThinned = chunk === null;
    for (let at = first; at < start.length; at++) {
      const begin = start[at];
      if (begin > to) break;
      const end = begin + dur[at];
      if (end < from) continue;
      const row = depth[at];
      if (row >= rows) continue;
      const above = y + row * ROW_HEIGHT;
      if (above + ROW_HEIGHT < 0 || above > this.height) continue;
      let left = gutter + (begin - from) * perTime;
      let wide = (end - begin) * perTime;
      if (wide < 1) {
        left = Math.floor(left);
        if (lastPixel[row] === left) continue;
        lastPixel[row] = left;
        wide = 1;
      } else {
        if (left < gutter) { wide -= gutter - left; left = gutter; }
        if (left + wide > width) wide = width - left;
        if (wide > 3) wide -= 0.6;
      }
      const signature = sig[at];
      let key = kind[signature] * 4 + tone[signature];
      if (dims && !dims[signature]) key += 1024;
      let bucket = buckets.get(key);
      if (!bucket) buckets.set(key, bucket = []);
      bucket.push(left, above, wide);
      if (wide > 26 && key < 1024) this.labels.push(left, above, wide, signature, isThinned ? num[at] : 1);
    }
  }

  flush(pen, rank) {
    const high = ROW_HEIGHT - 2;
    for (const [key, bucket] of this.buckets) {
      if (!bucket.length) continue;
      const at = key % 1024;
      pen.globalAlpha = key < 1024 ? 1 : 0.22;
      pen.fillStyle = this.shades[at >> 2][at & 3];
      for (let i = 0; i < bucket.length; i += 3) pen.fillRect(bucket[i], bucket[i + 1] + 1, bucket[i + 2], high);
    }
    pen.globalAlpha = 1;
    pen.fillStyle = this.ink;
    for (let i = 0; i < this.labels.length; i += 5) {
      const [left, above, wide, signature, num] = this.labels.slice(i, i + 5);
      const text = this.fitted(pen, rank.signatures, signature, wide - 7, num > 1 ? `${num} × ` : "");
      if (text) pen.fillText(text, left + 4, above + ROW_HEIGHT / 2 + 0.5);
    }
  }

  // As much of a signature's name as has room; "" if there is none for three letters.
  fitted(pen, { label, width }, signature, room, before) {
    const text = label[signature];
    width[signature] ||= pen.measureText(text).width || 1;
    const prefix = before ? pen.measureText(before).width : 0;
    if (width[signature] + prefix <= room) return before + text;
    const keep = Math.floor(text.length * (room - prefix - 9) / width[signature]); // 9: the width of …
    return keep >= 2 ? `${before}${text.slice(0, keep)}…` : "";
  }

  // The line of a rank: the busiest row of each of its tracks, if they are folded.
  paintRankLine(pen, { rank, y, height }) {
    const top = y - this.top;
    pen.fillStyle = this.colours.card;
    pen.fillRect(this.timeline.gutter, top, this.width, height - 1);
    if (!this.timeline.stack.folded.has(rank)) return;
    const strips = stripsOf(rank);
    const tall = (height - 7) / strips.length;
    strips.forEach(([track, row], at) => this.paintStrip(pen, track, row, top + 3 + at * tall, Math.max(1.5, tall - 0.7)));
  }

  paintStrip(pen, track, row, top, tall, from = this.timeline.from, to = this.timeline.to, left = this.timeline.gutter, right = this.width) {
    const { start, dur, sig, depth } = track.overview;
    const { kind } = track.rank.signatures;
    const perTime = (right - left) / (to - from);
    let last = -1;
    for (let at = 0; at < start.length; at++) {
      if (depth[at] !== row || start[at] + dur[at] < from) continue;
      if (start[at] > to) break;
      const x = left + Math.max(0, start[at] - from) * perTime;
      const wide = (Math.min(to, start[at] + dur[at]) - Math.max(from, start[at])) * perTime;
      if (wide < 1 && Math.floor(x) === last) continue;
      last = Math.floor(x);
      pen.fillStyle = this.shades[kind[sig[at]]][1];
      pen.fillRect(x, top, Math.max(1, wide), tall);
    }
  }

  paintCurve(pen, { curve, y, height }) {
    const bottom = y - this.top + height;
    const most = Math.max(1, ...curve.bytes);
    const shape = new Path2D();
    let level = 0;
    shape.moveTo(this.x(curve.at[0]), bottom);
    curve.at.forEach((time, at) => {
      shape.lineTo(this.x(time), bottom - level);
      level = curve.bytes[at] / most * (height - 4);
      shape.lineTo(this.x(time), bottom - level);
    });
    shape.lineTo(this.x(curve.at[curve.at.length - 1]), bottom);
    pen.globalAlpha = 0.28;
    pen.fillStyle = this.colours.accent;
    pen.fill(shape);
    pen.globalAlpha = 1;
    pen.strokeStyle = this.colours.accent;
    pen.lineWidth = 1;
    pen.stroke(shape);
  }

  paintGrid(pen) {
    pen.fillStyle = this.colours.line;
    pen.globalAlpha = 0.5;
    for (const { x } of this.ticks()) pen.fillRect(Math.round(x), 0, 1, this.height);
    pen.globalAlpha = 1;
  }

  // Ticks at round times, as { x, text }: absolute, or as the distance from a rounder time.
  ticks() {
    const { from, to, gutter } = this.timeline;
    const step = tickStep(Math.max(1, (to - from) / Math.max(2, (this.width - gutter) / 105)));
    const ticks = [];
    for (let time = Math.ceil(from / step) * step; time <= to; time += step) ticks.push({ x: this.x(time), time });
    this.tickStep = step;
    return ticks;
  }

  paintGutter(pen, line) {
    const { gutter } = this.timeline;
    const top = line.y - this.top;
    const isRank = !line.track && !line.curve;
    pen.fillStyle = isRank ? this.colours.card : this.colours.back;
    pen.fillRect(0, top, gutter - 1, line.height + (isRank ? 0 : GAP));
    pen.fillStyle = this.colours.line;
    pen.fillRect(gutter - 1, top, 1, line.height + GAP);
    if (isRank) pen.fillRect(0, top, this.width, 1);
    if (isRank) return; // its text is a button
    const text = line.track ? trackName(line.track) : say("timeline_memory", { place: line.curve.place });
    const indent = this.timeline.isNarrow ? 8 : 18;
    const room = gutter - indent - 8;
    const shown = Math.max(Math.min(top, this.height - ROW_HEIGHT), Math.min(0, top + line.height - ROW_HEIGHT));
    pen.fillStyle = line.track ? this.colours.text : this.colours.soft;
    // The name of a track that folds is a button.
    if (!line.track || !canFold(line.track)) pen.fillText(shortened(pen, text, room), indent, shown + ROW_HEIGHT / 2 + 0.5);
    if (line.curve && line.height > 30) {
      pen.fillStyle = this.colours.soft;
      pen.fillText(say("timeline_most", { bytes: inBytes(Math.max(...line.curve.bytes)) }), indent, top + ROW_HEIGHT * 1.5);
    } else if (line.track && line.height >= 2 * ROW_HEIGHT) {
      const num = line.track.chunks.reduce((sum, chunk) => sum + chunk.num, 0);
      pen.fillStyle = this.colours.soft;
      pen.fillText(shortened(pen, say("timeline_events", { num: inFull(num) }), room), indent, shown + ROW_HEIGHT * 1.5);
    }
  }

  paintSelection(pen) {
    for (const [spot, width] of [[this.timeline.hovered, 1], [this.timeline.selected, 2]]) {
      if (!spot) continue;
      const { start, dur, depth, track } = spot;
      const top = this.timeline.stack.topOf(track, depth);
      if (top === null || this.timeline.stack.folded.has(track.rank)) continue;
      const left = Math.max(this.timeline.gutter, this.x(start));
      const right = Math.min(this.width, this.x(start + dur));
      if (right < this.timeline.gutter || left > this.width) continue;
      pen.strokeStyle = width > 1 ? this.colours.text : this.colours.soft;
      pen.lineWidth = width;
      pen.strokeRect(left, top - this.top + 0.5, Math.max(2, right - left - 0.6), ROW_HEIGHT - 1);
    }
  }

  paintArrows(pen) {
    for (const { from, to, text } of this.timeline.arrows) {
      if (!to) {
        this.paintFlag(pen, from, text);
        continue;
      }
      const [above, below] = [from, to].map(({ track, depth }) => this.timeline.stack.topOf(track, depth));
      if (above === null || below === null) continue;
      const [x, y] = [this.x(from.time), above - this.top + ROW_HEIGHT / 2];
      const [endX, endY] = [this.x(to.time), below - this.top + ROW_HEIGHT / 2];
      const bend = Math.max(18, Math.abs(endX - x) / 2);
      pen.strokeStyle = pen.fillStyle = this.colours.text;
      pen.lineWidth = 1.5;
      pen.beginPath();
      pen.moveTo(x, y);
      pen.bezierCurveTo(x + bend, y, endX - bend, endY, endX, endY);
      pen.stroke();
      pen.beginPath();
      pen.moveTo(endX, endY);
      pen.lineTo(endX - 7, endY - 4);
      pen.lineTo(endX - 7, endY + 4);
      pen.fill();
    }
  }

  // The critical path: a band over the track that it is on, and an arrow to the next one, if there is room.
  paintPath(pen) {
    const { path, from, to, stack } = this.timeline;
    if (!path) return;
    const lines = new Map();
    for (const line of stack.lines.filter(({ curve }) => !curve)) lines.set(line.track ?? line.rank, line);
    let [before, beforeX, arrowX] = [null, -1, -Infinity];
    this.pathPieces = 0;
    for (let at = lastBefore(path, from, "to") + 1; at < path.length && path[at].from <= to; at++) {
      const line = lines.get(path[at].track) ?? lines.get(path[at].rank);
      const isNext = before !== null && path[at - 1].to === path[at].from;
      const x = Math.max(this.timeline.gutter, this.x(path[at].from));
      const wide = Math.max(1, this.x(Math.min(to, path[at].to)) - x);
      if (line && (line !== before || x + wide >= beforeX + 1)) {
        pen.fillStyle = this.colours.accent;
        pen.globalAlpha = 0.2;
        pen.fillRect(x, line.y - this.top, wide, line.height);
        pen.globalAlpha = 1;
        pen.fillRect(x, line.y - this.top, wide, 3);
        this.pathPieces += 1;
        beforeX = Math.floor(x + wide);
      }
      if (line && isNext && line !== before && x >= arrowX + 4) {
        this.paintHop(pen, x, before, line);
        arrowX = x;
      }
      before = line ?? null;
    }
  }

  paintHop(pen, x, { y, height }, { y: otherY, height: otherHeight }) {
    const isDown = otherY > y;
    const [start, end] = isDown ? [y + height, otherY] : [y, otherY + otherHeight];
    const tip = end - this.top;
    const back = isDown ? -5 : 5;
    pen.fillStyle = this.colours.accent;
    pen.fillRect(x - 0.5, Math.min(start, end) - this.top, 1, Math.abs(end - start));
    pen.beginPath();
    pen.moveTo(x, tip);
    pen.lineTo(x - 3, tip + back);
    pen.lineTo(x + 3, tip + back);
    pen.fill();
  }

  // An arrow that leaves the page: the name of where it leads, above the event or below it.
  paintFlag(pen, { track, depth, time }, text) {
    const row = this.timeline.stack.topOf(track, depth);
    if (row === null) return;
    const [x, top] = [this.x(time), row - this.top];
    if (x < this.timeline.gutter || x > this.width) return;
    const shown = `→ ${text}`;
    const wide = pen.measureText(shown).width + 12;
    const left = Math.max(this.timeline.gutter, Math.min(x, this.width - wide));
    const y = top >= ROW_HEIGHT ? top - ROW_HEIGHT : top + ROW_HEIGHT;
    pen.fillStyle = this.colours.text;
    pen.fillRect(Math.round(x), Math.min(y, top), 1.5, 2 * ROW_HEIGHT);
    pen.fillRect(left, y, wide, ROW_HEIGHT - 2);
    pen.fillStyle = this.colours.back;
    pen.fillText(shown, left + 6, y + ROW_HEIGHT / 2);
  }

  paintRange(pen) {
    const { range, gutter } = this.timeline;
    if (!range) return;
    const left = Math.max(gutter, this.x(range.from));
    const right = Math.min(this.width, this.x(range.to));
    if (right < gutter || left > this.width) return;
    pen.fillStyle = this.colours.accent;
    pen.globalAlpha = 0.13;
    pen.fillRect(left, 0, right - left, this.height);
    pen.globalAlpha = 1;
    for (const x of [left, right]) pen.fillRect(Math.round(x), 0, 1, this.height);
  }

  paintHead() {
    const { timeline } = this;
    const pen = this.pen(this.head);
    const left = timeline.gutter;
    this.mapImage ||= this.paintMap();
    pen.drawImage(this.mapImage, 0, 0, this.width, MAP);
    const all = timeline.store.end;
    const at = (time) => left + time / all * (this.width - left);
    pen.fillStyle = this.colours.back;
    pen.globalAlpha = 0.66;
    pen.fillRect(left, 0, at(timeline.from) - left, MAP);
    pen.fillRect(at(timeline.to), 0, this.width - at(timeline.to), MAP);
    pen.globalAlpha = 1;
    pen.strokeStyle = this.colours.accent;
    pen.lineWidth = 1.5;
    pen.strokeRect(at(timeline.from), 0.75, Math.max(3, at(timeline.to) - at(timeline.from) - 0.75), MAP - 1.5);
    pen.fillStyle = this.colours.text;
    for (const time of timeline.marks) pen.fillRect(at(time), MAP - 6, 1, 6);
    pen.fillStyle = this.colours.soft;
    pen.fillText(say("timeline_whole", { time: timeText(all) }), 8, MAP / 2);
    this.paintAxis(pen);
  }

  paintAxis(pen) {
    const { from, to, gutter, range } = this.timeline;
    const middle = MAP + AXIS / 2 + 0.5;
    const ticks = this.ticks();
    // Deep inside a long trace, ticks count from a round time, which stands at the left.
    const base = to - from < to / 1000 ? Math.floor(from / this.tickStep / 20) * this.tickStep * 20 : 0;
    pen.fillStyle = this.colours.line;
    pen.fillRect(0, MAP + AXIS - 1, this.width, 1);
    for (const { x, time } of ticks) {
      pen.fillStyle = this.colours.line;
      pen.fillRect(Math.round(x), MAP + 2, 1, AXIS - 3);
      const text = (base ? "+" : "") + tickText(time - base, this.tickStep);
      if (x + 4 + pen.measureText(text).width > this.width) continue;
      pen.fillStyle = this.colours.soft;
      pen.fillText(text, x + 4, middle);
    }
    pen.fillStyle = this.colours.text;
    pen.fillText(shortened(pen, base ? exactSeconds(base) : timeText(to - from), gutter - 12), 8, middle);
    if (!range) return;
    const [left, right] = [Math.max(gutter, this.x(range.from)), Math.min(this.width, this.x(range.to))];
    const text = timeText(range.to - range.from);
    const wide = pen.measureText(text).width + 12;
    if (right < gutter || left > this.width) return;
    const start = Math.max(gutter, Math.min(this.width - wide, (left + right - wide) / 2));
    pen.fillStyle = this.colours.accent;
    pen.fillRect(left, MAP + AXIS - 4, right - left, 3);
    pen.fillRect(start, MAP + 2, wide, AXIS - 5);
    pen.fillStyle = this.colours.back;
    pen.fillText(text, start + 6, middle);
  }

  // All shown ranks over the whole time, in a picture that is kept until ranks or theme change.
  paintMap() {
    const image = document.createElement("canvas");
    image.width = this.head.width;
    image.height = Math.round(MAP * this.scale);
    const pen = image.getContext("2d");
    pen.setTransform(this.scale, 0, 0, this.scale, 0, 0);
    pen.fillStyle = this.colours.card;
    pen.fillRect(0, 0, this.width, MAP);
    const { store, stack, gutter } = this.timeline;
    const strips = stack.ranks.flatMap(stripsOf);
    const tall = (MAP - 8) / Math.max(1, strips.length);
    strips.forEach(([track, row], at) => this.paintStrip(pen, track, row, 4 + at * tall,
      Math.max(0.75, tall - (tall > 3 ? 1 : 0)), 0, store.end, gutter, this.width));
    return image;
  }
}

// [track, row] of what stands for a rank: the phases of its first thread, and its first three streams.
function stripsOf(rank) {
  const streams = rank.tracks.filter((track) => !track.isHost).slice(0, 3);
  const threads = rank.tracks.filter((track) => track.isHost).slice(0, 1);
  return [...threads.map((track) => [track, Math.min(1, track.rows - 1)]), ...streams.map((track) => [track, 0])];
}

// A time with three significant digits and its unit.
const timeText = (time) => inTime(time / 1e6);

const exactSeconds = (time) => `${(time / 1e9).toFixed(9).replace(/0+$/, "").replace(/\.$/, "")} s`;

// A time with as many digits as ticks at `step` need.
function tickText(time, step) {
  if (time === 0) return "0";
  const [unit, factor] = unitOf(Math.abs(time), [["s", 1e9], ["ms", 1e6], ["us", 1e3], ["ns", 1]]);
  const digits = Math.max(0, Math.ceil(Math.log10(factor / step) - 1e-9));
  return `${(time / factor).toFixed(Math.min(9, digits))} ${unit}`;
}
