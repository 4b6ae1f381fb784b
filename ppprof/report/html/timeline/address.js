"use strict";
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
