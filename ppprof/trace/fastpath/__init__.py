"""Read and write many events at once, most of it in compiled C. `core` says whether that is there.

Programs that print traces use a fixed layout. So the text can be compared with the layout, and no
JSON parser is needed.

- `layouts` describes the known layouts with format strings, and `fixed_layout` what is read from
  such text. The `scanner` of `native` reads it.
- The `event_reader` of `native` reads events by the names of their keys, for writers without a fixed
  layout. For Paddle's files as well it would save 680 lines; it read them in 1.4 times the time, and made
  ``summary`` of 118 MB take 1.08 and of 395 MB 1.15 times as long (in pairs, November 2026).
- `ranges` divides a long file among threads, `ahead` begins with it during the imports, and
  `threads` does the same for other work on arrays.
- `core.call` calls the two functions of `native` for trees: pre-order, which numpy alone makes 10% slower
  for a long ``.pb``, and parents from times. Each caller has the same in numpy.
- ``flight.c`` reads nothing: it notes the communication of a training (`ppprof.capture.ranks.flight_core`), and lies
  here as there is one compiled library.
- `protobuf_native`, or `protobuf_decode` without the compiled core, reads many messages of a ``.pb``
  file at once; `protobuf_messages` is what both share. `protobuf_encode` writes such
  messages, with numpy.

For JSON, this folder only saves time (`make bench`): without the core, or in no known layout, events
are decoded by `ppprof.trace.json`.
"""
