"""The format strings with which Paddle's writer and `write_paddle_json` print events.

`scan` matches the text of events with them, from the end of an event to its start.

Source: chrometracing_logger.cc of Paddle 2.3 to 3.3 (schema 1.0.0, 1.0.1, 1.0.2), whose versions
differ in blanks at the ends of lines, in colours and in the fields of an operator; and
`write_paddle_json`.
"""

from __future__ import annotations

from typing import NamedTuple

from ppprof.trace.fastpath.scan import EventPattern


class Dialect(NamedTuple):
    """All layouts that one writer prints."""

    layouts: tuple[EventPattern, ...]
    """The layouts, the most frequent first.

    Their kinds are host, launch, device and memory; and flow for arrows, which are not kept.
    """
    start: bytes
    """The bytes with which every event begins, including the line break before the event."""
    escapes: bool
    """Whether the writer escapes names as JSON requires; Paddle's does not."""
    ts_is_exact: bool
    """Whether ``ts`` has nanoseconds; Paddle cuts it to whole microseconds."""

    def last_start(self, text: bytearray, first: int, end: int) -> int:
        """Return the offset of the last event that begins in ``text[first:end]``; -1 for none."""
        return text.rfind(self.start, first, end)


_START_END = '"start_time": "%f{begin} us",\n      "end_time": "%f{finish} us"'
_DEVICE = '"device": %d{device}, "context": %d{context},\n      '
_STREAM = '"stream": %d{stream}, "correlation id": %d{correlation_id},\n      '


def _paddle(blank: str) -> tuple[EventPattern, ...]:
    """Return the layouts of Paddle's writer.

    ``blank`` is the text at the ends of some lines: a space before schema 1.0.2, empty since then.
    """
    opened = f"\n  {{{blank}\n"
    closed = "\n    }\n  },\n  "

    def complete(tid: str, args: str, opened: str = opened) -> str:
        """Return the layout of an X event with these ``args``."""
        return (
            f'{opened}    "name": "%s{{name}}", "pid": %d{{pid}}, "tid": {tid},\n'
            '    "ts": %d{ts}, "dur": %f{dur},\n'
            f'    "ph": "X", "cat": "%w{{cat}}",{blank}\n'
            '    "cname": "%w{}",\n'
            f'    "args": {{\n      {args}{closed}'
        )

    def arrow(tid: str, tail: str) -> str:
        """Return the layout of one end of a flow event; ``tail`` holds its last fields."""
        return (
            f'{opened}    "name": "launch", "id": %d{{}}, "pid": %d{{}}, "tid": {tid},\n'
            f'    "ts": %d{{}},{blank}\n    {tail}\n  }},\n  '
        )

    cpp, python, stream = '"%d{tid}(C++)"', '"%d{tid}(Python)"', "%d{tid}"
    shapes = (
        ',\n      "input_shapes": %l{shapes},\n      "input_dtypes": %l{dtypes},'
        '\n      "callstack": "%l{callstack}"'
    )
    # Memcpy and Memset events never had the blank after their brace.
    bare = "\n  {\n"
    return (
        EventPattern("host", complete(cpp, _START_END)),
        EventPattern("host", complete(cpp, _START_END + shapes)),
        EventPattern(
            "launch", complete(cpp, f'"correlation id": %d{{correlation_id}},\n      {_START_END}')
        ),
        EventPattern("flow", arrow('"%d{}(C++)"', '"ph": "s", "cat": "async"')),
        EventPattern(
            "device",
            complete(
                stream,
                f"{_START_END},\n      {_DEVICE}{_STREAM}"
                '"registers per thread": %d{registers},\n'
                '      "shared memory": %d{shared_bytes},\n'
                '      "blocks per SM": %g{blocks_per_sm},\n'
                '      "warps per SM": %g{warps_per_sm},\n'
                '      "grid": [%d{grid_x}, %d{grid_y}, %d{grid_z}],\n'
                '      "block": [%d{block_x}, %d{block_y}, %d{block_z}],\n'
                '      "theoretical achieved occupancy %": %g{occupancy}',
            ),
        ),
        EventPattern("flow", arrow("%d{}", '"ph": "f", "cat": "async", "bp": "e"')),
        EventPattern("flow", arrow("%d{}", '"ph": "f", "cat": "async"')),
        EventPattern(
            "memory",
            f'{opened}    "name": "[memory]", "pid": %d{{pid}}, "tid": "%d{{tid}}(C++)",\n'
            f'    "ts": %d{{ts}},{blank}\n'
            f'    "ph": "i", "cat": "%w{{cat}}",{blank}\n'
            '    "args": {\n'
            '      "place": "%w{place}",\n'
            '      "addr": "%d{addr}",\n'
            '      "increase_bytes": %d{bytes},\n'
            '      "current_allocated": %d{current_allocated},\n'
            '      "current_reserved": %d{current_reserved},\n'
            '      "peak_allocated": %d{peak_allocated},\n'
            f'      "peak_reserved": %d{{peak_reserved}}{closed}',
        ),
        EventPattern("host", complete(python, _START_END)),
        EventPattern(
            "device",
            complete(
                stream,
                f'{_START_END},\n      {_STREAM}"bytes": %d{{bytes}}, "memory bandwidth (GB/s)": %g{{bandwidth}}',
                bare,
            ),
        ),
        EventPattern(
            "device",
            complete(
                stream,
                f'{_START_END},\n      {_DEVICE}{_STREAM}"bytes": %d{{bytes}}, "value": %d{{value}}',
                bare,
            ),
        ),
    )


def _ours() -> tuple[EventPattern, ...]:
    """Return the layouts of `write_paddle_json`: one line per event, exact times."""

    def complete(tid: str, args: str) -> str:
        return (
            f'\n{{"name":"%s{{name}}","pid":%d{{pid}},"tid":{tid},"ts":%f{{ts}},"dur":%f{{dur}},'
            '"ph":"X","cat":"%w{cat}","cname":"%w{}",'
            f'"args":{{"start_time":"%f{{}} us","end_time":"%f{{}} us"{args}}}}},'
        )

    cpp, python, stream = '"%d{tid}(C++)"', '"%d{tid}(Python)"', "%d{tid}"
    depth = ',"depth":%d{depth}'
    links = ("", *(f',"{key}":%d{{{key}}}' for key in ("forward", "sequence")))
    inputs = [
        f'{depth}{link},"input_shapes":%o{{shapes}},"input_dtypes":%o{{dtypes}}{attributes}'
        for link in links
        for attributes in ("", ',"attributes":%o{attributes}')
    ]
    # The annotations that capture writes; other combinations are decoded as JSON.
    collectives = [
        f'{axis},"group":%d{{group}}{tensor},"peers":"%w{{peers}}"'
        for axis in (',"axis":"%w{axis}"', "")
        for tensor in (',"bytes":%d{bytes},"dtype":"%w{dtype}"', "")
    ]
    pipeline = [
        f',"stage":%d{{stage}}{chunk},"micro_batch":%d{{micro_batch}},"phase":"%w{{phase}}"'
        for chunk in ("", ',"chunk":%d{chunk}')
    ]
    device = (
        ',"device":%d{device},"context":%d{context},"stream":%d{stream},'
        '"correlation id":%d{correlation_id}'
    )
    return (
        *(EventPattern("host", complete(track, depth)) for track in (cpp, python)),
        *(EventPattern("host", complete(cpp, args)) for args in inputs),
        EventPattern("launch", complete(cpp, ',"correlation id":%d{correlation_id}')),
        *(
            EventPattern(
                "flow",
                f'\n{{"name":"launch","id":%d{{}},"pid":%d{{}},"tid":{tid},"ts":%f{{}},'
                f'"ph":"{ph}","cat":"async"{binding}}},',
            )
            for tid, ph, binding in (('"%w{}"', "s", ""), ("%d{}", "f", ',"bp":"e"'))
        ),
        EventPattern(
            "device",
            complete(
                stream,
                f'{device},"registers per thread":%d{{registers}},"shared memory":%d{{shared_bytes}},'
                '"blocks per SM":%g{blocks_per_sm},"warps per SM":%g{warps_per_sm},'
                '"grid":[%d{grid_x},%d{grid_y},%d{grid_z}],'
                '"block":[%d{block_x},%d{block_y},%d{block_z}],'
                '"theoretical achieved occupancy %":%g{occupancy}',
            ),
        ),
        EventPattern(
            "memory",
            '\n{"name":"[memory]","pid":%d{pid},"tid":"%d{tid}(C++)","ts":%f{ts},"ph":"i","s":"t",'
            '"cat":"%w{cat}","args":{"place":"%w{place}","addr":"%d{addr}",'
            '"increase_bytes":%d{bytes},"current_allocated":%d{current_allocated},'
            '"current_reserved":%d{current_reserved},"peak_allocated":%d{peak_allocated},'
            '"peak_reserved":%d{peak_reserved}}},',
        ),
        EventPattern(
            "device",
            complete(
                stream, f'{device},"bytes":%d{{bytes}},"memory bandwidth (GB/s)":%g{{bandwidth}}'
            ),
        ),
        EventPattern(
            "device", complete(stream, f'{device},"bytes":%d{{bytes}},"value":%d{{value}}')
        ),
        *(
            EventPattern("host", complete(cpp, f'{depth},"{key}":%d{{{key}}}'))
            for key in ("sequence", "forward")
        ),
        *(EventPattern("host", complete(cpp, f"{depth}{args}")) for args in collectives),
        *(EventPattern("host", complete(python, f"{depth}{args}")) for args in pipeline),
    )


DIALECTS = {
    "paddle": Dialect(_paddle(""), b'\n  {\n    "name": "', escapes=False, ts_is_exact=False),
    "paddle 1.0": Dialect(_paddle(" "), b"\n  {", escapes=False, ts_is_exact=False),
    "ppprof": Dialect(_ours(), b'\n{"name":"', escapes=True, ts_is_exact=True),
}
"""Name of the writer -> its dialect; "paddle 1.0" stands for the versions before schema 1.0.2."""


def dialect_of(text: bytes) -> str | None:
    """Return the key in `DIALECTS` of the writer of a list of events.

    ``text`` is the text after the bracket of the list. The first bytes of its first event show the
    writer; None if they are of no known writer.
    """
    first = text.lstrip(b" \n")
    before = text[: len(text) - len(first)]
    if first.startswith(b'{ \n    "name": "'):
        return "paddle 1.0"
    if first.startswith(b'{\n    "name": "') and before.endswith(b"\n  "):
        return "paddle"
    return "ppprof" if first.startswith(b'{"name":"') and before == b"\n" else None
