"""Read and write traces of a fixed layout, many events at once.

Programs that print traces use a fixed layout. So the text can be compared with the layout, and no
JSON parser is needed.

- `layouts` describes the known layouts with format strings; `fixed_layout` has the interface of the
  scanners that read them, and `core` chooses one:
- `native` is compiled C; `ranges` divides a long file among threads, `ahead` begins with it during
  the imports, and `threads` does the same for other work on arrays.
  Its `event_reader` reads events by the names of their keys, for writers without a fixed layout.
  `core.call` calls its functions for whole arrays: trees, times, texts as numbers. Each caller has
  the same in numpy beside the call.
- `scan` uses numpy: it matches one field of all events of a block at once (`byte_view`) and
  replaces texts by numbers (`string_table`).
- `protobuf_native`, or `protobuf_decode` without the compiled core, reads many messages of a ``.pb``
  file at once; `protobuf_messages` is what both share. `mapped` saves a copy of a long file.
  `protobuf_encode` writes such messages, with numpy.

For JSON, this folder only saves time (`make bench`): any event that does not match a layout is
decoded by `ppprof.trace.json`.
"""
