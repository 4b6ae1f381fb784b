"use strict";
// Below the tracks: the keys, what is known about the selected event, what fills the selected range,
// and what is left out.

const MOST_FILLED = 12; // names listed for a range at first

class TimelinePanel {
  constructor(timeline, box, live) {
    Object.assign(this, { timeline, box, live });
  }

  clear() { this.box.replaceChildren(make("p", { class: "tl-empty" }, say("timeline_nothing_selected"))); }

  announce(text) { this.live.textContent = text; }

  // Show an event; links are null until they are known.
  show(event, facts, links) {
    const title = make("h3", { class: "tl-name" }, event.name);
    const swatch = this.swatch(event.kind);
    title.prepend(swatch);
    const close = this.leaving("timeline_close", "×", () => this.timeline.clearSelection());
    const list = make("dl", { class: "tl-facts" });
    for (const [name, text, more] of facts) {
      if (text === null || text === undefined || text === "") continue;
      const value = make("dd", more || {}, text);
      const row = wrapped(make("dt", {}, say(`timeline_${name}`)), value);
      if (text.length > 30) row.className = "tl-wide";
      list.append(row);
    }
    const top = wrapped(title, close);
    top.className = "tl-top";
    this.box.replaceChildren(top, list, ...this.linksOf(links));
    const stack = event.of("callstack");
    if (stack) this.box.append(make("pre", { tabindex: 0 }, stack));
  }

  linksOf(links) {
    if (!links) return [];
    const groups = [["launch", [links.launch]], ["started", links.started], ["forward_of", [links.forward]], ["same", links.peers]];
    return groups.map(([name, events]) => [name, events.filter(Boolean)]).filter(([, events]) => events.length).map(([name, events]) => {
      const row = make("div", { class: "tl-links" });
      const more = name === "started" && links.more ? "+" : "";
      row.append(make("span", {}, `${say(`timeline_${name}`)} (${events.length}${more})`));
      for (const event of events) {
        const where = name === "same" ? `${nameOf("rank")} ${event.track.rank.rank} · ` : "";
        const text = `${where}${event.label} · ${timeText(event.dur)}`;
        row.append(this.leaving(null, text, () => this.timeline.select(event, { jumps: true }), event.name));
      }
      return row;
    });
  }

  // Show a range: its length, and what fills it by kind and by name.
  showRange(range, rank, fill) {
    const length = range.to - range.from;
    const top = make("div", { class: "tl-top" });
    top.append(make("h3", { class: "tl-name" }, say("timeline_range", {
      length: timeText(length), from: exactSeconds(Math.round(range.from)), to: exactSeconds(Math.round(range.to)), rank: rank ? rank.label : "-",
    })));
    top.append(this.button("timeline_zoom_range", say("timeline_zoom_range"), () => this.timeline.look(range.from, range.to)));
    top.append(this.leaving("timeline_close", "×", () => this.timeline.clearRange()));
    this.box.replaceChildren(top);
    if (!fill) {
      this.box.append(make("p", {}, say("timeline_counting")));
      return;
    }
    this.box.append(make("p", { class: "about" }, say("timeline_fill_about")));
    const tables = make("div", { class: "tl-tables" });
    for (const { track, kinds, names } of fill) {
      const group = make("section");
      group.append(make("h4", {}, trackName(track)));
      group.append(this.fillTable("kind", kinds.map((row) => ({ ...row, text: say(`timeline_kind_${row.kind}`), title: null })), length));
      const table = this.fillTable("name", names.slice(0, MOST_FILLED), length);
      group.append(table);
      if (names.length > MOST_FILLED) {
        const more = this.button(null, say("timeline_more", { num: names.length - MOST_FILLED }), () => {
          more.remove();
          const whole = this.fillTable("name", names, length);
          whole.tabIndex = -1;
          table.replaceWith(whole);
          whole.focus({ preventScroll: true });
        });
        group.append(more);
      }
      tables.append(group);
    }
    this.box.append(tables);
  }

  fillTable(what, rows, length) {
    const table = make("table", { class: `tl-fill-${what}` });
    const head = table.createTHead().insertRow();
    for (const key of [what, "time", "share", "num"]) head.append(make("th", { scope: "col" }, say(`timeline_by_${key}`)));
    const body = table.createTBody();
    for (const { kind, text, title, time, count } of rows) {
      const row = body.insertRow();
      const name = make("td", { title: title ?? text }, text);
      name.prepend(this.swatch(kind));
      row.append(name, ...[timeText(time), `${(100 * time / length).toFixed(1)}%`, inFull(count)]
        .map((shown) => make("td", { class: "number" }, shown)));
      row.dataset.ns = time;
      row.dataset.num = count;
    }
    return table;
  }

  swatch(kind) {
    const swatch = make("i", { class: "tl-swatch", "aria-hidden": "true" });
    swatch.style.background = this.timeline.painter.shades[this.timeline.store.kinds.indexOf(kind)][1];
    return swatch;
  }

  // The button removes itself; move the focus to the tracks.
  leaving(key, text, onClick, title) {
    return this.button(key, text, () => {
      this.timeline.body.focus({ preventScroll: true });
      onClick();
    }, title);
  }

  button(key, text, onClick, title = key && say(key)) {
    return makeButton(text, onClick, title && title !== text ? { title, "aria-label": key ? title : text } : {});
  }
}

function wrapped(...elements) {
  const box = make("div");
  box.append(...elements);
  return box;
}

// [name, text] of all that is known about an event.
function factsOf(event, store, around, memory, started) {
  const { rank } = event.track;
  const modules = around.filter((outer) => ["forward", "backward", "optimization", "dataloader", "span"].includes(outer.kind));
  const all = (column, shown = String) => (event.of(column) === null ? null : shown(event.of(column)));
  const grid = ["x", "y", "z"].map((axis) => event.of(`grid_${axis}`));
  const block = ["x", "y", "z"].map((axis) => event.of(`block_${axis}`));
  const work = event.of("flops");
  const device = started.events.reduce((sum, kernel) => sum + kernel.dur, 0);
  const busy = event.place === PLACES.device ? event.dur : device;
  return [
    ["kind", say(`timeline_kind_${event.kind}`)],
    ["category", event.of("category")],
    ["start", exactSeconds(event.start), { "data-ns": event.start }],
    ["length", timeText(event.dur), { "data-ns": event.dur }],
    ["rank", `${rank.label}${rank.host ? ` · ${rank.host}` : ""}`],
    [event.track.isHost ? "thread_of" : "stream_of", trackName(event.track)],
    ["step", event.step < 0 ? null : String(event.step)],
    ["node", calleeText(calleeOf(store, event))],
    ["module", modules.map(({ name }) => name).reverse().join(" › ")],
    ["device_time", event.place === PLACES.device || !device ? null : `${timeText(device)}${started.more ? " +" : ""}`],
    ["shapes", all("shapes")],
    ["dtype", all("dtypes") ?? all("dtype")],
    ["attributes", all("attributes")],
    ["flops", work === null ? null : `${inFull(work)}${busy && !started.more ? ` · ${(work / busy / 1e3).toPrecision(3)} TFLOP/s` : ""}`],
    ["moved", all("moved_bytes", inBytes)],
    ["bytes", all("bytes", (bytes) => `${inBytes(bytes)} (${inFull(bytes)} B)`)],
    ["axis", all("axis")],
    ["peers", all("peers")],
    ["micro_batch", event.of("micro_batch") === null ? null
      : [event.of("micro_batch"), event.of("stage") !== null && say("stage", { stage: event.of("stage") }), event.of("phase")].filter((text) => text !== false && text !== null).join(" · ")],
    ["memory_of", memory && say("timeline_memory_change", { allocated: inBytes(memory.allocated), freed: inBytes(memory.freed), current: inBytes(memory.current) })],
    ["grid", grid.every((size) => size === null) ? null : `${grid.join(" × ")} · ${block.join(" × ")}`],
    ["registers", all("registers")],
    ["shared_memory", all("shared_bytes", inBytes)],
    ["occupancy", all("occupancy", (ratio) => `${(100 * ratio).toFixed(0)}%`)],
  ];
}

// What fills a range on each track of a rank, largest first.
async function fillOfRange(store, rank, { from, to }) {
  const all = [];
  for (const track of rank.tracks) {
    const { time, count } = await store.fill(track, from, to);
    const kinds = new Map();
    const names = new Map();
    const { kind: kindOf, name: nameOfSignature, label } = rank.signatures;
    for (let sig = 0; sig < time.length; sig++) {
      if (!count[sig]) continue;
      const kind = store.kinds[kindOf[sig]];
      for (const [sums, key] of [[kinds, kind], [names, nameOfSignature[sig]]]) {
        const sum = sums.get(key) || { kind, text: sums === names ? label[sig] : key, title: key, time: 0, count: 0 };
        sum.time += time[sig];
        sum.count += count[sig];
        sums.set(key, sum);
      }
    }
    const sorted = (sums) => [...sums.values()].sort((one, other) => other.time - one.time || other.count - one.count);
    if (kinds.size) all.push({ track, kinds: sorted(kinds), names: sorted(names) });
  }
  return all;
}

function keyHelp() {
  const help = make("p", { class: "tl-keys" });
  help.append(make("span", { class: "tl-touch" }, say("timeline_touch")));
  for (const [keys, what] of say("timeline_keys").split("; ").map((text) => text.split(": "))) {
    const item = make("span", { class: "tl-key" });
    item.append(...keys.split(" ").map((key) => make("kbd", {}, key)), document.createTextNode(` ${what}`));
    help.append(item, document.createTextNode(" "));
  }
  return help;
}

// What the page leaves out of the tracks.
function notesOf({ ranks }) {
  const total = (key) => ranks.reduce((sum, rank) => sum + rank[key], 0);
  const note = (key, num, values) => (num ? [make("p", { class: "tl-note" }, say(key, { num: inFull(num), ...values }))] : []);
  const time = timeText(Math.max(...ranks.map((rank) => rank.left_out_below)));
  return [...note("timeline_left_out", total("left_out"), { time }), ...note("timeline_elsewhere", total("elsewhere"), {})];
}
