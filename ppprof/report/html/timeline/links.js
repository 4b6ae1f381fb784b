"use strict";
// What belongs to an event: its launch or kernels, the forward of a gradient, the same communication on
// other ranks. An event of the timeline is { track, chunk, at } with its columns as properties.

const MOST_LINKED = 24;

async function eventAt(store, { chunk, at }) {
  const events = await store.wait(chunk);
  const { signatures } = chunk.track.rank;
  const sig = events.sig[at];
  if (at < chunk.repeated) { // to the chunk in which it begins
    return eventOfRow(store, chunk.track.rank, events.row[at], signatures.place[sig] === PLACES.launch);
  }
  return {
    chunk, at, track: chunk.track, sig, start: events.start[at], dur: events.dur[at],
    depth: events.depth[at], level: events.level[at], row: events.row[at], step: events.step[at] - 1, size: events.size[at], link: events.link[at],
    parent: events.parent[at], place: signatures.place[sig], kind: store.kinds[signatures.kind[sig]],
    name: signatures.name[sig], label: signatures.label[sig],
    of: (column) => (signatures[column] ? signatures[column][sig] : null),
  };
}

async function eventOfRow(store, rank, row, isLaunch) {
  const spot = row < 0 ? null : await store.locate(rank, row, isLaunch);
  return spot && eventAt(store, spot);
}

// The events around an event, innermost first; those of its launch for a device event.
async function eventsAround(store, event) {
  const around = [];
  let inner = event;
  if (event.place === PLACES.device) {
    inner = await eventOfRow(store, event.track.rank, event.link, true);
    if (!inner) return around;
    around.push(inner);
  }
  while (inner.parent >= 0) {
    inner = await eventAt(store, { chunk: inner.chunk, at: inner.parent });
    around.push(inner);
  }
  return around;
}

// The device events that a launch, or the launches below a host event, started; at most MOST_LINKED,
// and whether there are or may be more: the page may have left out some of them.
async function startedBy(store, event) {
  const { rank } = event.track;
  if (event.place === PLACES.device) return { events: [], more: false };
  const isThinned = rank.left_out > 0;
  const events = [];
  const firsts = event.place === PLACES.launch ? [[event.row, event.link]] : await launchesBelow(store, event);
  for (const [launch, first] of firsts) {
    for (let row = first, missing = 0; row >= 0 && missing < MOST_LINKED; row++) {
      const found = await eventOfRow(store, rank, row, false);
      if (found ? found.link !== launch : !isThinned) break;
      if (found) events.push(found);
      else missing++;
      if (events.length === MOST_LINKED) return { events, more: true };
    }
  }
  return { events, more: isThinned || firsts.isCut === true };
}

async function launchesBelow(store, event) {
  const found = [];
  const { place } = event.track.rank.signatures;
  const { chunks } = event.track;
  for (let number = chunks.indexOf(event.chunk); number < chunks.length; number++) {
    const chunk = chunks[number];
    if (chunk.start >= event.start + event.dur) break;
    const { sig, level, row, link } = await store.wait(chunk);
    // A repeated event stands before events that are not below it.
    const first = Math.max(chunk.repeated, chunk === event.chunk ? event.at + 1 : 0);
    for (let at = first; at < sig.length; at++) {
      if (level[at] <= event.level) return found;
      if (place[sig[at]] === PLACES.launch && link[at] >= 0) found.push([row[at], link[at]]);
      if (found.length >= MOST_LINKED) return Object.assign(found, { isCut: true });
    }
  }
  return found;
}

// The same communication on the other ranks: events, in the order of ranks.
async function peersOf(store, event, around) {
  const { rank } = event.track;
  let own = null;
  for (const span of [event, ...around]) {
    own = span.place === PLACES.host ? await flowOf(rank, span.row) : null;
    if (own) break;
  }
  if (!own) return [];
  const peers = [];
  for (const other of store.ranks) {
    if (other === rank) continue;
    const row = rowOfFlow(await flowsOf(other), own);
    const found = row < 0 ? null : await eventOfRow(store, other, row, false);
    if (found) peers.push(found);
    if (peers.length === MOST_LINKED) break;
  }
  return peers;
}

async function flowsOf(rank) {
  rank.flowEnds ||= inflate(rank.flows).then((bytes) => {
    const [rows, flows, posts] = unpack(bytes, [Int32Array, Int32Array, Uint8Array]);
    return { rows, flows, posts };
  });
  return rank.flowEnds;
}

async function flowOf(rank, row) {
  const { rows, flows, posts } = await flowsOf(rank);
  const at = rows.indexOf(row);
  return at < 0 ? null : { flow: flows[at], post: posts[at] };
}

// The row of a communication on another rank; -1 if there is none. An isend leads to the irecv, and the
// send that it started to the recv, if the other rank has both.
function rowOfFlow({ rows, flows, posts }, { flow, post }) {
  let chosen = -1;
  for (let at = flows.indexOf(flow); at >= 0; at = flows.indexOf(flow, at + 1)) {
    if (posts[at] === post) return rows[at];
    if (chosen < 0) chosen = rows[at];
  }
  return chosen;
}

// Bytes allocated and freed in a host event and below it, and the level after its last change.
async function memoryOf(event) {
  const { rank } = event.track;
  if (rank.memory === null || event.place !== PLACES.host) return null;
  rank.changes ||= inflate(rank.memory).then((bytes) => unpack(bytes, [Int32Array, Float64Array, Float64Array, Float64Array]));
  const [rows, allocated, freed, current] = await rank.changes;
  const total = { allocated: 0, freed: 0, current: null };
  for (let at = 0; at < rows.length && rows[at] <= event.row + event.size; at++) {
    if (rows[at] < event.row) continue;
    total.allocated += allocated[at];
    total.freed += freed[at];
    total.current = current[at];
  }
  return total.current === null ? null : total;
}

// Arrows from an event along its links, as { from, to } with track, depth and time.
function arrowsOf(event, { launch, started, forward, peers }) {
  const end = (at, time) => ({ track: at.track, depth: at.depth, time });
  const arrows = started.map((kernel) => {
    // An operator's arrow leaves from within it, at the latest at its end.
    const leaves = Math.min(event.start + event.dur, Math.max(event.start, kernel.start));
    return { from: end(event, leaves), to: end(kernel, kernel.start) };
  });
  if (launch) arrows.push({ from: end(launch, launch.start + launch.dur), to: end(event, event.start) });
  if (forward) arrows.push({ from: end(forward, forward.start + forward.dur), to: end(event, event.start) });
  const receives = /recv/i.test(event.name);
  for (const peer of peers) {
    const [first, second] = receives || (!/send/i.test(event.name) && peer.start < event.start) ? [peer, event] : [event, peer];
    arrows.push({ from: end(first, first.start), to: end(second, second.start + second.dur) });
  }
  return arrows;
}

// Calls of functions on other processes: from the caller to the rank that ran the function.

const REMOTE_CALL = /^(?:.*#remote_op: )?rpc#[^\s()]*\([^\s()]+ -> ([^\s()]+)\)$/;

// Where a call ran: the worker, its rank in the page (or null), and whether events of the worker lie
// in the call. Null for an event that is no call.
function calleeOf(store, event) {
  const call = event.place === PLACES.host ? REMOTE_CALL.exec(event.name) : null;
  if (!call) return null;
  const rank = store.ranks.find((other) => other.node === call[1] && other !== event.track.rank) || null;
  return { worker: call[1], rank, isRecorded: event.size > 0 };
}

// An arrow to the first track of the worker's rank. If the page has neither that rank nor events of the
// worker, an arrow without an end, with the worker's name.
function arrowsOfCall(event, callee) {
  if (!callee) return [];
  const from = { track: event.track, depth: event.depth, time: event.start };
  if (callee.rank) return [{ from, to: { track: callee.rank.tracks[0], depth: 0, time: event.start } }];
  return callee.isRecorded ? [] : [{ from, to: null, text: callee.worker }];
}

function calleeText(callee) {
  if (!callee) return null;
  return callee.rank ? `${callee.worker} · ${nameOf("rank")} ${callee.rank.rank}` : callee.worker;
}
