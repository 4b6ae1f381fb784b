"""Reading at the speed of memory: what prints traces has a fixed layout, which is matched with numpy.

`scan` finds events of a known layout (`fixed_layout`, `layouts`) in blocks of bytes (`byte_view`),
interns their texts (`string_table`), and shares long files among processes (`workers`).
`protobuf_decode` and `protobuf_encode` do the same for ``.pb``. Nothing here is needed to read a
trace: whatever does not match is decoded event by event, as `ppprof.trace.json` does. It is what
reads 110 MB of Paddle's JSON in less than a second, where ``orjson.loads`` takes twice as long
(`make bench`).
"""
