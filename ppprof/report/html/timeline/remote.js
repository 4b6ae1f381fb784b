"use strict";
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
