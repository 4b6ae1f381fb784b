"""Read and write traces at the speed of memory. Nothing outside this folder needs to know how.

Programs that print traces use a fixed layout, so numpy can match it instead of a JSON parser.

- `scan` matches events of a known layout (`fixed_layout`, `layouts`) in blocks of bytes
  (`byte_view`), and interns their texts (`string_table`).
- `workers` divides a long file among processes.
- `protobuf_decode` and `protobuf_encode` do the same for ``.pb``.

What it buys (`make bench`): 110 MB of Paddle's JSON are read into the events table in less than a
second; ``orjson.loads`` alone takes twice as long. No trace needs this folder to be readable: any
event that does not match a layout is decoded by `ppprof.trace.json`.
"""
