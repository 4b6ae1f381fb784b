"use strict";
// The timeline: its state, its controls and its address, and what connects store, painter, panel and input.

const SHORTEST = 100; // ns: the shortest view
const FINEST = 2 ** -45; // of the whole trace: a number holds a time no finer than 2 ** -53 of it
const MOST_HITS = 200_000; // matches of a search that can be visited
const MOST_MARKS = 2000; // matches marked on the minimap

class Timeline {
  constructor(figure, meta) {
    this.figure = figure;
    this.store = new TimelineStore(meta);
    this.stack = new TimelineStack(this.store);
    this.shortest = Math.max(SHORTEST, this.store.end * FINEST);
    Object.assign(this, { from: 0, to: this.store.end, arrows: [], selected: null, hovered: null, range: null, text: "", path: null, masks: null, dimmed: null, hits: null, marks: [] });
    this.build();
    this.painter = new TimelinePainter(this, this.head, this.body);
    this.panel = new TimelinePanel(this, this.panelBox, this.live);
    this.input = new TimelineInput(this, this.head, this.body);
    this.address = new TimelineAddress(this);
    this.store.onload = () => this.painter.request();
    this.panel.clear();
    this.resize();
    new ResizeObserver(() => {
      if (this.body.clientWidth !== this.width) this.resize();
    }).observe(this.scroller);
    this.ready = this.store.ready.then(() => {
      this.isReady = true;
      this.figure.querySelector(".drawing").inert = false;
      this.buildLegend();
      this.painter.request();
      return this.address.follow();
    });
  }

  build() {
    const box = this.figure.querySelector(".drawing");
    box.replaceChildren();
    box.removeAttribute("style");
    box.classList.add("tl");
    box.inert = true; // until names are unpacked
    const caption = this.figure.querySelector("figcaption").textContent;
    this.head = make("canvas", { class: "tl-head", "aria-hidden": "true" });
    this.body = make("canvas", { class: "tl-body", tabindex: 0, role: "application", "aria-label": `${caption}. ${say("timeline_help")}` });
    this.content = make("div", { class: "tl-content" });
    this.content.append(this.body);
    this.scroller = make("div", { class: "tl-scroller" });
    this.scroller.append(this.content);
    this.scroller.addEventListener("scroll", () => this.painter.request(), { passive: true });
    this.legend = make("div", { class: "tl-legend", role: "group", "aria-label": say("timeline_legend") });
    this.panelBox = make("div", { class: "tl-panel" });
    this.live = make("p", { class: "tl-live", "aria-live": "polite" });
    box.append(this.buildBar(), this.legend, this.head, this.scroller, keyHelp(), this.panelBox, this.live, ...notesOf(this.store));
    this.buildRanks();
  }

  buildBar() {
    const bar = make("div", { class: "tl-bar" });
    this.searchBox = searchBox(say("timeline_search"));
    this.searchBox.addEventListener("input", () => this.search(this.searchBox.value));
    this.searchBox.addEventListener("keydown", (event) => {
      if (event.key === "Enter") this.nextMatch(event.shiftKey ? -1 : 1);
      else if (event.key === "Escape") this.body.focus();
      else return;
      event.preventDefault();
    });
    this.found = make("output", { class: "tl-found" });
    const button = (key, sign, act) => makeButton(sign, act, { title: say(key), "aria-label": say(key) });
    const group = (...elements) => Object.assign(wrapped(...elements), { className: "tl-group" });
    bar.append(group(this.searchBox, button("timeline_previous", "↑", () => this.nextMatch(-1)), button("timeline_next", "↓", () => this.nextMatch(1)), this.found));
    if (this.store.ranks.length > 1) {
      this.filterBox = searchBox(say("timeline_filter"), { class: "tl-filter" });
      this.filterBox.addEventListener("input", () => this.arrange({ wanted: this.filterBox.value }));
      const orders = Object.keys(RANK_ORDERS).filter((order) => order !== "slowest" || this.store.ranks.some(({ own }) => own !== null));
      const order = choice(say("timeline_order"), orders.map((key) => [key, say(`timeline_order_${key}`)]), (key) => this.arrange({ order: key }));
      this.shownRanks = make("output");
      bar.append(group(this.filterBox, this.shownRanks, order,
        button("timeline_unfold_all", "▾", () => this.foldAll(false)), button("timeline_fold_all", "▸", () => this.foldAll(true))));
    }
    if (this.store.packedPath !== null) {
      this.pathButton = makeButton(say("timeline_path"), () => this.togglePath(), { title: say("timeline_path_help"), "aria-pressed": "false" });
      bar.append(group(this.pathButton));
    }
    bar.append(group(button("zoom_out", "−", () => this.zoom(1.6)), button("zoom_in", "+", () => this.zoom(0.6)), button("reset", "⤢", () => this.look(0, this.store.end))));
    return bar;
  }

  buildRanks() {
    for (const old of this.content.querySelectorAll("button")) old.remove();
    this.content.style.height = `${this.stack.height}px`;
    const foldButton = (className, text, title, isFolded, y, act) => {
      const button = makeButton(`${isFolded ? "▸" : "▾"} ${text}`, act, { class: className, "aria-expanded": String(!isFolded), title });
      button.style.top = `${y}px`;
      this.content.append(button);
      return button;
    };
    for (const rank of this.stack.ranks) {
      const name = (text) => `${rank.is_slow ? "▲ " : ""}${nameOf("rank")} ${text}`;
      const title = `${name(rank.label)}${rank.host ? ` · ${rank.host}` : ""}`;
      rank.button = foldButton("tl-rank", name(this.isNarrow ? rank.rank : rank.label), title,
        this.stack.folded.has(rank), this.stack.headOf(rank).y, () => this.fold(rank));
    }
    for (const { track, y } of this.stack.lines.filter((line) => line.track && canFold(line.track))) {
      track.button = foldButton("tl-rank tl-python", trackName(track), trackName(track),
        this.stack.foldedTracks.has(track), y, () => this.foldTrack(track));
    }
    if (this.shownRanks) this.shownRanks.textContent = say("timeline_ranks", { shown: this.stack.ranks.length, all: this.store.ranks.length });
  }

  buildLegend() {
    const seen = new Set(this.store.ranks.flatMap((rank) => [...new Set(rank.signatures.kind)]));
    this.legendKinds = [...seen].sort((one, other) => one - other);
    this.legend.replaceChildren(...this.legendKinds.map((number) => {
      const kind = this.store.kinds[number];
      const button = makeButton(say(`timeline_kind_${kind}`), () => this.highlight(number), { "aria-pressed": "false", title: say("timeline_highlight") });
      button.prepend(this.panel.swatch(kind));
      return button;
    }));
  }

  // Another theme or width: the same state in other colours.
  repaint() {
    this.resize();
    this.painter.paint(); // at once: a printer waits for no frame
    [...this.legend.children].forEach((button, at) => {
      button.firstChild.style.background = this.painter.shades[this.legendKinds[at]][1];
    });
  }

  get isNarrow() { return this.body.clientWidth < 640; }

  resize() {
    this.width = this.body.clientWidth;
    this.gutter = this.isNarrow ? 104 : 232;
    this.figure.style.setProperty("--tl-gutter", `${this.gutter}px`);
    const height = Math.max(160, Math.min(this.stack.height + 2, Math.round(innerHeight * 0.72)));
    this.scroller.style.height = this.body.style.height = `${height}px`;
    this.painter.refresh();
    this.painter.request();
  }

  dispose() {} // kept for the next drawing

  // The view.

  get perPixel() { return (this.to - this.from) / Math.max(1, this.width - this.gutter); }
  timeAt(x) { return this.from + (Math.max(this.gutter, Math.min(this.width, x)) - this.gutter) * this.perPixel; }

  look(from, to, { writes = true } = {}) {
    const length = Math.min(this.store.end, Math.max(this.shortest, to - from));
    const middle = to - from < this.shortest ? (from + to - length) / 2 : from;
    this.from = Math.max(0, Math.min(middle, this.store.end - length));
    this.to = this.from + length;
    if (writes) this.address.write();
    this.painter.request();
  }

  pan(by) { this.look(this.from + by, this.to + by); }

  zoom(factor, around = (this.from + this.to) / 2) {
    const length = Math.min(this.store.end, Math.max(this.shortest, (this.to - this.from) * factor));
    const share = (around - this.from) / (this.to - this.from);
    this.look(around - share * length, around + (1 - share) * length);
  }

  scroll(by) { this.scroller.scrollTop += by; }

  lookAround({ start, dur }) {
    const around = Math.max(dur * 0.15, this.shortest / 2);
    this.look(start - around, start + dur + around);
  }

  get view() {
    return { from: this.from, to: this.to, rank: this.shownRank?.rank ?? null, find: this.text, select: this.selected };
  }

  async open({ from, to, rank, find, select }, isStale) {
    if (from !== null && to > from) this.look(from, to, { writes: false });
    if (find !== this.text) {
      this.searchBox.value = find;
      this.search(find, { writes: false });
    }
    const shown = this.store.ranks.find((at) => at.rank === rank);
    if (shown) this.show(shown);
    if (!select) {
      this.clearSelection();
      return;
    }
    const owner = this.store.ranks.find((at) => at.rank === select.rank);
    const event = owner && await eventOfRow(this.store, owner, select.row, null);
    if (!event || isStale()) return;
    if (from === null) this.lookAround(event);
    await this.select(event, { writes: false });
  }

  // Unfold a rank and scroll to it; with an event, to the event's row.
  show(rank, event = null) {
    this.shownRank = rank;
    if (!this.stack.ranks.includes(rank) && this.filterBox) {
      this.filterBox.value = "";
      this.stack.wanted = "";
    }
    this.stack.fold(rank, false);
    if (event) this.stack.foldTrack(event.track, false);
    this.relayout();
    const top = event ? this.stack.topOf(event.track, event.depth) : this.stack.headOf(rank).y;
    const { scrollTop, clientHeight } = this.scroller;
    if (event === null || top < scrollTop || top + ROW_HEIGHT > scrollTop + clientHeight) {
      this.scroller.scrollTop = event ? top - clientHeight / 2 : top;
    }
  }

  relayout() {
    this.painter.mapImage = null;
    this.buildRanks();
    this.resize();
  }

  fold(rank) {
    this.stack.fold(rank);
    const had = document.activeElement === rank.button;
    this.relayout();
    if (had) rank.button.focus({ preventScroll: true });
  }

  foldTrack(track) {
    this.stack.foldTrack(track);
    this.relayout();
    track.button.focus({ preventScroll: true });
  }

  foldRank() {
    const rank = this.selected?.track.rank ?? this.rankAt(0);
    if (rank) this.fold(rank);
  }

  foldAll(folds) {
    this.stack.foldAll(folds);
    this.relayout();
  }

  arrange(changes) {
    Object.assign(this.stack, changes);
    this.stack.arrange();
    this.scroller.scrollTop = 0;
    this.relayout();
    if (this.text) this.search(this.text);
  }

  rankAt(y) {
    const line = this.stack.lineAt(y + this.scroller.scrollTop);
    return line ? line.rank : this.stack.ranks[0] ?? null;
  }

  // Events.

  // The event at a point of the body, as drawn: the longest of those within some pixels.
  spotAt(x, y, near) {
    const line = this.stack.lineAt(y + this.scroller.scrollTop);
    if (!line || !line.track || x < this.gutter) return null;
    const row = Math.floor((y + this.scroller.scrollTop - line.y) / ROW_HEIGHT);
    const [time, reach] = [this.timeAt(x), near * this.perPixel];
    const [first, last] = this.store.chunksIn(line.track, time - reach, time + reach);
    let best = null;
    for (const chunk of line.track.chunks.slice(first, last)) {
      const events = this.store.peek(chunk);
      if (!events) continue;
      const { start, dur, depth } = events;
      for (let at = 0; at < start.length && start[at] <= time + reach; at++) {
        if (depth[at] !== row || start[at] + dur[at] < time - reach) continue;
        const away = Math.max(0, start[at] - time, time - start[at] - dur[at]);
        if (!best || away < best.away || (away === best.away && dur[at] > best.dur)) best = { chunk, at, away, start: start[at], dur: dur[at], depth: row, track: line.track, sig: events.sig[at] };
      }
    }
    return best;
  }

  hoverAt(x, y, event) {
    this.pointerTime = x < this.gutter ? null : this.timeAt(x);
    const spot = this.spotAt(x, y, 1);
    this.hover(spot);
    if (!spot) return;
    const { name, kind } = spot.track.rank.signatures;
    tip.show(`${name[spot.sig]}\n${say(`timeline_kind_${this.store.kinds[kind[spot.sig]]}`)} · ${timeText(spot.dur)}`, event.clientX, event.clientY);
  }

  hover(spot) {
    if (!spot) tip.hide();
    if (spot?.chunk === this.hovered?.chunk && spot?.at === this.hovered?.at) return;
    this.hovered = spot;
    this.painter.request();
  }

  async pickAt(x, y, near) {
    const line = this.stack.lineAt(y + this.scroller.scrollTop);
    if (line && !line.track && !line.curve) return;
    let spot = this.spotAt(x, y, near);
    if (!spot && line?.track) { // drawn thinned: unpack what is there
      const [first, last] = this.store.chunksIn(line.track, this.timeAt(x - near), this.timeAt(x + near));
      await Promise.all(line.track.chunks.slice(first, last).map((chunk) => this.store.wait(chunk)));
      spot = this.spotAt(x, y, near);
    }
    if (!spot) {
      this.clearSelection();
      this.clearRange();
      return;
    }
    await this.select(await eventAt(this.store, spot));
  }

  // Select an event. With `jumps`, bring it into view. Each selection is an entry of the history.
  async select(event, { jumps = false, writes = true } = {}) {
    if (writes) this.address.push();
    this.selected = event;
    this.range = null;
    this.arrows = [];
    const { rank } = event.track;
    this.shownRank = rank;
    if (jumps && (event.start + event.dur < this.from || event.start > this.to || event.dur > this.to - this.from)) {
      const length = Math.max(this.to - this.from, event.dur * 1.3);
      this.look(event.start + event.dur / 2 - length / 2, event.start + event.dur / 2 + length / 2, { writes: false });
    }
    if (jumps || !writes) this.show(rank, event);
    this.panel.announce(say("timeline_selected", { name: event.name, length: timeText(event.dur), start: exactSeconds(event.start) }));
    if (writes) this.address.replace();
    this.painter.request();
    const around = await eventsAround(this.store, event);
    const [started, memory, peers] = await Promise.all([startedBy(this.store, event), memoryOf(event), peersOf(this.store, event, around)]);
    const launch = event.place === PLACES.device ? around[0] ?? null : null;
    const forward = event.place === PLACES.host ? await eventOfRow(this.store, rank, event.link, false) : null;
    if (this.selected !== event) return;
    const links = { launch, started: started.events, more: started.more, forward, peers };
    this.panel.show(event, factsOf(event, this.store, around, memory, started), links);
    this.uncover(event);
    this.arrows = [...arrowsOf(event, links), ...arrowsOfCall(event, calleeOf(this.store, event))];
    this.painter.request();
  }

  // Scroll the page so that the panel, at the bottom of the window, does not cover the event.
  uncover(event) {
    const top = this.body.getBoundingClientRect().top + this.stack.topOf(event.track, event.depth) - this.scroller.scrollTop;
    const covered = top + 2 * ROW_HEIGHT - this.panelBox.getBoundingClientRect().top;
    if (covered > 0) window.scrollBy({ top: covered, behavior: "instant" });
  }

  clearSelection() {
    if (!this.selected) return;
    this.selected = null;
    this.arrows = [];
    this.panel.clear();
    this.painter.request();
    this.address.write();
  }

  // To the next or previous event of the selection's row; without a selection, to the first visible one.
  async walk(way) {
    const { selected } = this;
    const line = selected ? null : this.stack.lines.find((at) => at.track && at.y + at.height > this.scroller.scrollTop);
    const track = selected?.track ?? line?.track;
    if (!track) return;
    let number = selected ? track.chunks.indexOf(selected.chunk) : this.store.chunksIn(track, this.from, this.to)[0];
    for (let at = selected ? selected.at + way : null; number >= 0 && number < track.chunks.length; number += way, at = null) {
      const chunk = track.chunks[number];
      const { start, dur, depth } = await this.store.wait(chunk);
      for (at ??= way > 0 ? (selected ? chunk.repeated : 0) : start.length - 1; at >= (selected ? chunk.repeated : 0) && at < start.length; at += way) {
        if (depth[at] !== (selected?.depth ?? 0) || (!selected && start[at] + dur[at] < this.from)) continue;
        await this.select(await eventAt(this.store, { chunk, at }), { jumps: true });
        return;
      }
    }
  }

  // To the event around the selection, or to the first one in it.
  async climb(down) {
    const { selected } = this;
    if (!selected) return;
    const { chunk } = selected;
    const at = down < 0 ? selected.parent : (await this.store.wait(chunk)).parent.indexOf(selected.at);
    const isBehind = at < 0 && down > 0 && selected.size > 0; // the first event inside is in a later chunk
    const event = isBehind ? await eventOfRow(this.store, chunk.track.rank, selected.row + 1, false)
      : at >= 0 && await eventAt(this.store, { chunk, at });
    if (event) await this.select(event, { jumps: true });
  }

  // Ranges.

  async setRange(one, other, rank, isDone) {
    const from = Math.max(0, Math.min(one, other));
    this.range = { from, to: Math.max(from + 1, Math.min(this.store.end, Math.max(one, other))) };
    this.painter.request();
    if (!isDone) return;
    const { range } = this;
    this.selected = null;
    this.arrows = [];
    this.panel.showRange(range, rank, null);
    this.address.write();
    const fill = rank ? await fillOfRange(this.store, rank, range) : [];
    if (this.range !== range) return;
    this.panel.showRange(range, rank, fill);
    this.panel.announce(say("timeline_range", { length: timeText(range.to - range.from), from: exactSeconds(Math.round(range.from)), to: exactSeconds(Math.round(range.to)), rank: rank ? rank.label : "-" }));
  }

  markRange() {
    const { start, dur, track } = this.selected ?? { start: this.from, dur: this.to - this.from, track: null };
    this.setRange(start, start + dur, track?.rank ?? this.rankAt(0), true);
  }

  clearRange() {
    if (!this.range) return;
    this.range = null;
    if (!this.selected) this.panel.clear();
    this.painter.request();
  }

  // Search and highlights.

  search(text, { writes = true } = {}) {
    this.text = text.trim();
    const wanted = this.text.toLowerCase();
    this.masks = wanted ? new Map(this.store.ranks.map((rank) =>
      [rank, Uint8Array.from(rank.signatures.name, (name) => name.toLowerCase().includes(wanted))])) : null;
    this.dimmed = null;
    this.pressLegend(-1);
    this.marks = [];
    this.hits = null;
    let num = 0;
    for (const rank of this.masks ? this.stack.ranks : []) {
      const mask = this.masks.get(rank);
      rank.signatures.num.forEach((count, sig) => { num += mask[sig] * count; });
    }
    this.numFound = num;
    this.found.textContent = wanted ? say("timeline_matches", { num: inFull(num) }) : "";
    if (writes) this.address.write();
    this.painter.request();
    if (wanted && num) this.hits = this.collectHits(this.masks);
  }

  async collectHits(masks) {
    const isStale = () => this.masks !== masks;
    const hits = await this.store.find(this.stack.ranks, masks, Math.ceil(MOST_HITS / this.stack.ranks.length), isStale);
    if (!hits) return [];
    const all = [...hits.values()].flat();
    const each = Math.max(1, Math.ceil(all.length / MOST_MARKS));
    this.marks = all.filter((_, at) => at % each === 0).map(({ time }) => time);
    this.painter.request();
    return all; // rank by rank, by time in each
  }

  async nextMatch(way) {
    if (!this.hits) return;
    const hits = await this.hits;
    if (!hits.length) return;
    const { selected } = this;
    const at = selected ? hits.findIndex(({ chunk, at: index }) => chunk === selected.chunk && index === selected.at) : -1;
    let next = at + way;
    if (at < 0) { // from the view: the first match in it or behind it
      const behind = hits.findIndex(({ time }) => time >= this.from);
      next = behind < 0 ? hits.length : behind;
      if (way < 0) next -= 1;
    }
    next = (next + hits.length) % hits.length;
    this.found.textContent = say("timeline_match", { at: inFull(next + 1), num: inFull(this.numFound) });
    await this.select(await eventAt(this.store, hits[next]), { jumps: true });
  }

  highlight(kind) {
    this.dimmed = this.dimmed === kind ? null : kind;
    this.pressLegend(this.dimmed ?? -1);
    this.painter.request();
  }

  pressLegend(kind) {
    [...this.legend.children].forEach((button, at) => button.setAttribute("aria-pressed", String(this.legendKinds[at] === kind)));
  }

  async togglePath() {
    const isOn = this.path === null;
    this.pathButton.setAttribute("aria-pressed", String(isOn));
    this.path = isOn ? [] : null; // while it is unpacked
    if (isOn) {
      const path = await this.store.path();
      if (this.path) this.path = path;
    }
    this.painter.request();
  }

  // Which signatures of a rank are drawn in full colour; null: all.
  maskOf(rank) {
    if (this.dimmed !== null) return rank.signatures.kind.map((kind) => Number(kind === this.dimmed));
    return this.masks ? this.masks.get(rank) : null;
  }
}

// Draw the timeline; the next time, for another theme, keep its state.
function drawTimeline(figure, found) {
  if (!window.DecompressionStream) {
    const box = figure.querySelector(".drawing");
    box.removeAttribute("style");
    box.replaceChildren(make("p", { class: "tl-note" }, say("timeline_old_browser")));
    return { resize() {}, dispose() {} };
  }
  if (figure.timeline) figure.timeline.repaint();
  else figure.timeline = new Timeline(figure, found);
  return figure.timeline;
}

// The view in the URL's hash, so that a view can be linked to:
//
//   #t=START-END     the shown time, in seconds since the start of the trace: #t=12.1-12.9. The start is
//                    the first event of all drawn ranks, on the reference clock (ReportData.origin_ns)
//   &rank=R          unfold rank R and scroll to it
//   &find=TEXT       search for TEXT; matches are highlighted, all else is dimmed. Without it, the
//                    search ends
//   &select=RANK.ROW select an event: rank, and its row in the rank's events table, as the report reads
//                    it: only the chosen steps, without an incomplete last one
//
// Every field may be missing; others than these make the hash an ordinary link within the page. A link
// scrolls the timeline into view. Panning and zooming replace the entry of the history; a selection
// pushes one, so that Back returns to the view before it.

const NAMES = ["t", "rank", "find", "select"];
const SETTLED_MS = 200;

function addressOf(hash) {
  const fields = new URLSearchParams(hash.replace(/^#/, ""));
  if (!NAMES.some((name) => fields.has(name))) return null;
  const range = /^(\d+(?:\.\d+)?)-(\d+(?:\.\d+)?)$/.exec(fields.get("t") || "");
  const spot = /^(\d+)\.(\d+)$/.exec(fields.get("select") || "");
  return {
    from: range && Number(range[1]) * 1e9,
    to: range && Number(range[2]) * 1e9,
    rank: /^\d+$/.test(fields.get("rank") || "") ? Number(fields.get("rank")) : null,
    find: (fields.get("find") ?? "").trim(),
    select: spot && { rank: Number(spot[1]), row: Number(spot[2]) },
  };
}

function hashOf({ from, to, rank, find, select }) {
  const seconds = (time) => (time / 1e9).toFixed(9).replace(/\.?0+$/, "");
  const fields = new URLSearchParams({ t: `${seconds(from)}-${seconds(to)}` });
  if (rank !== null) fields.set("rank", rank);
  if (find) fields.set("find", find);
  if (select) fields.set("select", `${select.track.rank.rank}.${select.row}`);
  return `#${fields}`;
}

class TimelineAddress {
  constructor(timeline) {
    this.timeline = timeline;
    this.waiting = null;
    addEventListener("hashchange", () => this.follow());
    addEventListener("popstate", () => this.follow());
    document.addEventListener("click", (event) => { // a link to the present address changes nothing
      if (event.target.closest("a[href^='#']")?.getAttribute("href") !== location.hash) return;
      this.isOurs = null;
      this.follow();
    });
    this.isOurs = null; // the hash that was written last
  }

  // Show what the hash says; does nothing for other links, and for a hash that was written here.
  async follow() {
    if (location.hash === this.isOurs) return;
    const address = addressOf(location.hash);
    this.isOurs = location.hash;
    clearTimeout(this.waiting);
    if (!address) return;
    const hash = this.isOurs;
    const isStale = () => hash !== this.isOurs;
    await this.timeline.store.ready;
    if (isStale()) return;
    this.timeline.figure.scrollIntoView({ block: "start", behavior: "instant" });
    await this.timeline.open(address, isStale);
  }

  write() {
    clearTimeout(this.waiting);
    this.waiting = setTimeout(() => this.replace(), SETTLED_MS);
  }

  replace() { this.keep("replaceState"); }

  // Keep the present view as an entry; what is written next is a new one.
  push() {
    this.replace();
    this.keep("pushState");
  }

  keep(method) {
    clearTimeout(this.waiting);
    const hash = hashOf(this.timeline.view);
    try {
      history[method](null, "", hash);
      this.isOurs = hash;
    } catch (error) {
      if (error.name !== "SecurityError") throw error; // in a notebook, the page has no address of its own
    }
  }
}
