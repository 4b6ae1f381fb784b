"""Read and write traces of a fixed layout with numpy, many events at once.

Programs that print traces use a fixed layout. So numpy can match the text with the layout, and no
JSON parser is needed.

- `scan` matches events of a known layout (`fixed_layout`, `layouts`) in blocks of bytes
  (`byte_view`), and replaces their texts by numbers (`string_table`).
- `workers` divides a long file among processes.
- `protobuf_decode` and `protobuf_encode` read and write many messages of a ``.pb`` file at once.

The gain (`make bench`): 110 MB of Paddle's JSON are read into the events table in less than a
second; ``orjson.loads`` alone takes twice as long. For JSON, this folder only saves time: any event
that does not match a layout is decoded by `ppprof.trace.json`.
"""
