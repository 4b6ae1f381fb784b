// Perfetto's trace processor as its web page runs it, outside of a browser.
//
//   node perfetto_engine.js DIRECTORY < requests > answers
//
// DIRECTORY holds engine_bundle.js and the .wasm files; requests and answers are Perfetto's
// TraceProcessorRpcStream messages, each behind its length (uint32, little endian).
"use strict";
const fs = require("fs");
const path = require("path");

const directory = process.argv[2];
const say = (...words) => console.error(...words);
const worker = { location: new URL(`file://${directory}/engine_bundle.js`) };
const port = {
  postMessage(answer) {
    const length = Buffer.alloc(4);
    length.writeUInt32LE(answer.length);
    fs.writeSync(1, Buffer.concat([length, Buffer.from(answer)]));
  },
};

// What the engine takes for the browser's.
globalThis.WorkerGlobalScope = globalThis.importScripts = function () {};
globalThis.location = worker.location;
globalThis.XMLHttpRequest = class {
  open(method, url) {
    this.file = path.join(directory, path.basename(url));
  }
  send() {
    this.status = 200;
    this.response = new Uint8Array(fs.readFileSync(this.file)).buffer;
  }
};
const code = fs.readFileSync(path.join(directory, "engine_bundle.js"), "utf8");
const quiet = { log: say, warn: say, error: say, info: say, debug: say, assert: console.assert };
new Function("process", "require", "module", "self", "console", code)(
  undefined, undefined, undefined, worker, quiet,
);
worker.onmessage({ data: port });

// The engine is compiled at once, and ready in the next turn.
setImmediate(() => {
  const requests = fs.readFileSync(0);
  for (let at = 0; at < requests.length; ) {
    const end = at + 4 + requests.readUInt32LE(at);
    port.onmessage({ data: new Uint8Array(requests.subarray(at + 4, end)) });
    at = end;
  }
});
