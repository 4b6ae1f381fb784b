"use strict";
// The events of the timeline: chunks are unpacked when they are asked for, and dropped when they are
// not used. All times are nanoseconds since the start of the trace.

const PLACES = { host: 0, launch: 1, device: 2 };
const MOST_HELD = 700_000; // unpacked events; about 45 bytes each

async function inflate(number) {
  const text = document.getElementById(`part-${number}`).textContent;
  const bytes = Uint8Array.fromBase64
    ? Uint8Array.fromBase64(text) : Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// Columns of packed.py: `types` has an array type for each column, or null to skip it.
function unpack(bytes, types) {
  const view = new DataView(bytes.buffer);
  let position = 0;
  return types.map((type) => {
    const width = bytes[position];
    const isDelta = bytes[position + 1];
    const length = view.getUint32(position + 2, true);
    const planes = position + 6;
    position = planes + width * length;
    if (!type) return null;
    const values = new Float64Array(length);
    for (let plane = 0, scale = 1; plane < width; plane++, scale *= 256) {
      const first = planes + plane * length;
      for (let at = 0; at < length; at++) values[at] += bytes[first + at] * scale;
    }
    if (isDelta) {
      let before = 0;
      for (let at = 0; at < length; at++) {
        const half = Math.floor(values[at] / 2);
        values[at] = before += half * 2 === values[at] ? half : -half - 1;
      }
    }
    return type === Float64Array ? values : new type(values);
  });
}

// Clock.to_reference: adds the offset, interpolated between readings.
function toReference({ shift, at, drift }) {
  return (time) => {
    let piece = 0;
    while (piece < at.length - 2 && at[piece + 1] < time) piece++;
    const [from, to] = [at[piece], at[piece + 1]];
    if (time <= at[0]) return time + shift + drift[0];
    if (time >= at[at.length - 1]) return time + shift + drift[at.length - 1];
    return time + shift + Math.round(drift[piece] + (drift[piece + 1] - drift[piece]) / (to - from) * (time - from));
  };
}

class TimelineStore {
  constructor(meta) {
    this.kinds = meta.kinds;
    this.packedPath = meta.path; // null: the page has no critical path
    this.loaded = new Map(); // chunk -> its events, least recently used first
    this.loading = new Map(); // chunk -> promise of its events
    this.queue = Promise.resolve(); // chunks are unpacked one by one, so that frames come between
    this.held = 0;
    this.mostHeld = MOST_HELD;
    this.onload = () => {};
    this.ranks = meta.ranks.map((found) => this.rankOf(found));
    this.end = Math.max(1, ...this.ranks.map((rank) => rank.end));
    this.ready = Promise.all(this.ranks.map((rank) => this.prepare(rank)));
  }

  rankOf(found) {
    const shared = toReference(found.to_reference);
    const rank = { ...found, shared, end: shared(found.end), tracks: [], packed: found.signatures, signatures: null };
    rank.tracks = found.tracks.map((track, number) => {
      const chunks = track.parts.map(([id, start, end, num, repeated, ...rows]) =>
        ({ id, start: shared(start), end: shared(end), num, repeated, rows }));
      const made = { ...track, rank, number, isHost: track.device === null, chunks, packed: track.overview, overview: null };
      for (const chunk of chunks) chunk.track = made;
      return made;
    });
    rank.levels = found.levels.map((curve) => ({ ...curve, at: curve.at.map(shared) }));
    return rank;
  }

  async prepare(rank) {
    const table = JSON.parse(new TextDecoder().decode(await inflate(rank.packed)));
    rank.signatures = {
      ...table, kind: Uint8Array.from(table.kind), place: Uint8Array.from(table.place),
      label: table.name.map(labelOf), tone: Uint8Array.from(table.name, toneOf), width: new Float32Array(table.name.length),
    };
    await Promise.all(rank.tracks.map(async (track) => {
      const [start, dur, sig, depth, num] = unpack(await inflate(track.packed),
        [Float64Array, Float64Array, Int32Array, Uint8Array, Int32Array]);
      for (let at = 0; at < start.length; at++) start[at] = rank.shared(start[at]);
      track.overview = { start, dur, sig, depth, num };
    }));
  }

  // The pieces of the critical path, in order of time: times, and rank and track of each (null: not drawn).
  async path() {
    this.pieces ||= inflate(this.packedPath).then((bytes) => {
      const [start, dur, ranks, tracks] = unpack(bytes, [Float64Array, Float64Array, Int32Array, Int32Array]);
      return [...start].map((from, at) => {
        const rank = this.ranks[ranks[at]];
        return { from, to: from + dur[at], rank, track: rank.tracks[tracks[at] - 1] ?? null };
      });
    });
    return this.pieces;
  }

  // The events of a chunk, or null while it is being unpacked.
  peek(chunk) {
    const events = this.loaded.get(chunk);
    if (!events) {
      if (!this.loading.has(chunk)) this.wait(chunk).then(() => this.onload());
      return null;
    }
    this.loaded.delete(chunk);
    this.loaded.set(chunk, events);
    return events;
  }

  async wait(chunk) {
    const events = this.loaded.get(chunk);
    if (events) return events;
    if (!this.loading.has(chunk)) {
      const loads = this.queue.then(() => this.load(chunk));
      this.queue = loads.catch(() => {});
      this.loading.set(chunk, loads);
    }
    return this.loading.get(chunk);
  }

  async load(chunk) {
    const events = eventsOf(chunk, await inflate(chunk.id));
    this.loaded.set(chunk, events);
    this.loading.delete(chunk);
    this.held += chunk.num;
    for (const oldest of this.loaded.keys()) {
      if (this.held <= this.mostHeld || oldest === chunk) break;
      this.loaded.delete(oldest);
      this.held -= oldest.num;
    }
    return events;
  }

  // [first, last + 1] of the chunks of a track that reach into a time.
  chunksIn(track, from, to) {
    const { chunks } = track;
    let first = 0;
    while (first + 1 < chunks.length && chunks[first + 1].start <= from) first++;
    let last = first;
    while (last < chunks.length && (last === first || chunks[last].start <= to)) last++;
    return chunks.length && chunks[first].start <= to ? [first, last] : [0, 0];
  }

  // Where the event of a row of the rank's events table is: { chunk, at }, or null.
  async locate(rank, row, isLaunch = null) {
    for (const track of rank.tracks) {
      for (const chunk of track.chunks) {
        const [low, high, lowLaunch, highLaunch] = chunk.rows;
        const maybeHost = isLaunch !== true && low <= row && row <= high;
        const maybeLaunch = isLaunch !== false && lowLaunch <= row && row <= highLaunch;
        if (!maybeHost && !maybeLaunch) continue;
        const at = (await this.wait(chunk)).row.indexOf(row, chunk.repeated);
        if (at >= 0) return { chunk, at };
      }
    }
    return null;
  }

  // The times of all events whose signature is wanted: per rank { time, chunk, at }, sorted by time.
  // `wanted` has a mask of signatures for each rank, `most` is the most per rank. Null once isStale().
  async find(ranks, wanted, most, isStale) {
    const all = new Map();
    for (const rank of ranks) {
      const mask = wanted.get(rank);
      const hits = [];
      if (mask.includes(1)) {
        for (const chunk of rank.tracks.flatMap((track) => track.chunks)) {
          const [start, , sig] = unpack(await inflate(chunk.id), [Float64Array, null, Int32Array]);
          if (isStale()) return null;
          for (let at = chunk.repeated; at < sig.length && hits.length < most; at++) {
            if (mask[sig[at]]) hits.push({ time: rank.shared(start[at]), chunk, at });
          }
        }
      }
      all.set(rank, hits.sort((one, other) => one.time - other.time));
    }
    return all;
  }

  // Time by signature and track within [from, to), without the time of events below: a Float64Array
  // for each track, and the number of events that begin or run there.
  async fill(track, from, to) {
    const { signatures } = track.rank;
    const time = new Float64Array(signatures.kind.length);
    const count = new Int32Array(signatures.kind.length);
    const [first, last] = this.chunksIn(track, from, to);
    for (let number = first; number < last; number++) {
      const chunk = track.chunks[number];
      const { start, dur, sig, parent } = await this.wait(chunk);
      for (let at = 0; at < sig.length; at++) {
        const length = Math.min(to, start[at] + dur[at]) - Math.max(from, start[at]);
        const isOutside = dur[at] > 0 ? length <= 0 : start[at] < from || start[at] >= to;
        if (isOutside || (at < chunk.repeated && number > first)) continue;
        time[sig[at]] += length;
        count[sig[at]] += 1;
        if (parent[at] >= 0) time[sig[parent[at]]] -= Math.max(0, length);
      }
    }
    return { time, count };
  }
}

// The events of a chunk; `parent` is an index in the chunk, -1 for none. `level` is the nesting depth,
// `depth` the row that an event is drawn in.
function eventsOf(chunk, bytes) {
  const { rank, isHost, rows: numRows } = chunk.track;
  const { place } = rank.signatures;
  const [start, dur, sig, level, rows, step, size, hasLink, links] = unpack(bytes,
    [Float64Array, Float64Array, Int32Array, Int32Array, Int32Array, Float64Array, Int32Array, Uint8Array, Int32Array]);
  const num = sig.length;
  const row = new Int32Array(num);
  const link = new Int32Array(num).fill(-1);
  const parent = new Int32Array(num).fill(-1);
  let next = 0;
  let nextLink = 0;
  for (const launches of [false, true]) { // rows of launches stand behind those of other events
    for (let at = 0; at < num; at++) {
      if ((place[sig[at]] === PLACES.launch) !== launches) continue;
      if (hasLink[next]) link[at] = links[nextLink++];
      row[at] = rows[next++];
    }
  }
  const open = []; // per level: the last event
  for (let at = 0; at < num; at++) {
    if (isHost) {
      open[level[at]] = at;
      parent[at] = open[level[at] - 1] ?? -1;
    }
    start[at] = rank.shared(start[at]);
  }
  const depth = level.map((nesting) => Math.min(nesting, numRows - 1));
  return { num, start, dur, sig, level, depth, row, step, size, link, parent };
}

// The name of a C++ function without return type, template arguments and parameters.
function labelOf(name) {
  const plain = name.replace(/^void /, "").replace(/[<(].*$/s, "");
  const last = plain.split("::").pop();
  return /[<(]/.test(name) && /^\w+$/.test(last) ? last : name;
}

function toneOf(name) {
  const sum = hash(name);
  return ((sum ^ (sum >>> 11)) >>> 0) % 4;
}
