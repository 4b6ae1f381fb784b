"use strict";
// Where ranks and tracks stand, top to bottom: which are shown, in which order, folded or not.

const ROW_HEIGHT = 18;
const HEAD = 28; // the line of a rank
const GAP = 8; // below a track
const CURVE = 34; // a memory curve
const MOST_UNFOLDED = 4;
const MOST_PYTHON_ROWS = 6; // a track of Python functions with more rows is folded at first

const RANK_ORDERS = {
  rank: (one, other) => one.rank - other.rank,
  slowest: (one, other) => (other.own ?? 0) - (one.own ?? 0) || one.rank - other.rank,
  host: (one, other) => String(one.host).localeCompare(String(other.host)) || one.rank - other.rank,
};

// Whether a rank is meant: numbers and ranges ("0,4-7"), else a chunk of its label or host ("pp1").
function isMeant(rank, wanted) {
  const text = wanted.trim().toLowerCase();
  if (!text) return true;
  return text.split(/[\s,]+/).filter(Boolean).some((piece) => {
    const range = /^(\d+)(?:-(\d+))?$/.exec(piece);
    if (range) return rank.rank >= Number(range[1]) && rank.rank <= Number(range[2] ?? range[1]);
    return `${rank.label} ${rank.host ?? ""}`.toLowerCase().split(/[\s·]+/).some((word) => word.startsWith(piece));
  });
}

class TimelineStack {
  constructor(store) {
    this.store = store;
    this.wanted = "";
    this.order = "rank";
    this.folded = new Set(store.ranks.slice(store.ranks.length > MOST_UNFOLDED ? 1 : store.ranks.length));
    this.foldedTracks = new Set(store.ranks.flatMap((rank) => rank.tracks)
      .filter((track) => track.is_python && track.rows > MOST_PYTHON_ROWS));
    this.arrange();
  }

  arrange() {
    this.ranks = this.store.ranks.filter((rank) => isMeant(rank, this.wanted)).sort(RANK_ORDERS[this.order]);
    this.lines = []; // { rank, y, height, track and rows or curve; none of them for the line of the rank }
    let y = 0;
    const add = (line, height, gap = 0) => {
      this.lines.push({ ...line, y, height });
      y += height + gap;
    };
    for (const rank of this.ranks) {
      add({ rank }, HEAD);
      if (this.folded.has(rank)) continue;
      for (const track of rank.tracks) {
        const rows = this.foldedTracks.has(track) ? 1 : track.rows; // a folded track shows its outermost events
        add({ rank, track, rows }, rows * ROW_HEIGHT, GAP);
      }
      for (const curve of rank.levels) add({ rank, curve }, CURVE, GAP);
    }
    this.height = y;
  }

  lineAt(y) {
    return this.lines.find((line) => y >= line.y && y < line.y + line.height) || null;
  }

  headOf(rank) { return this.lines.find((line) => line.rank === rank && !line.track && !line.curve) || null; }

  // The top of an event's row; that of the rank's line if the rank is folded; null if it is not shown.
  topOf(track, depth) {
    const line = this.lines.find((at) => at.track === track);
    if (line) return line.y + Math.min(depth, line.rows - 1) * ROW_HEIGHT;
    const head = this.headOf(track.rank);
    return head && head.y + (HEAD - ROW_HEIGHT) / 2;
  }

  fold(rank, folds = !this.folded.has(rank)) {
    if (folds) this.folded.add(rank);
    else this.folded.delete(rank);
    this.arrange();
  }

  foldTrack(track, folds = !this.foldedTracks.has(track)) {
    if (folds) this.foldedTracks.add(track);
    else this.foldedTracks.delete(track);
    this.arrange();
  }

  foldAll(folds) {
    this.folded = new Set(folds ? this.store.ranks : []);
    this.arrange();
  }
}

const canFold = (track) => track.is_python && track.rows > 1;

function trackName(track) {
  if (!track.isHost) return say("timeline_stream", { device: track.device, stream: track.stream ?? "-" });
  if (track.is_python) return say("timeline_python", { thread: track.thread ?? "-" });
  const number = say("timeline_thread", { thread: track.thread ?? "-" });
  return track.name ? `${track.name} · ${number}` : number;
}
