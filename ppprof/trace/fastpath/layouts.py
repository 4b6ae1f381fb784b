r"""The format strings with which Paddle's writer and `write_paddle_json` print events.

A program that prints every event with the same format string leaves text that needs no parser. Read
from the end of an event to its start, every number has a known neighbour on its right, so the place
of its last digit is known::

    ..., "ts": 1795214805084966, "dur": 12.345,\n    "ph": "X", ...
                              ^            ^ the literals to the right begin here

Only the name has free content. It is the leftmost field and takes the rest, so quotes and
backslashes in it do no harm. An event that differs from the format in any byte does not match; the
JSON decoder reads it. It also reads an event whose name contains a quotation mark that may end it: that
may be two events, with no line break between them. If the decoder finds that text broken, it reads the
whole file: what can be recovered depends on the text around. `native` has the program that reads events in
this way.

Source: chrometracing_logger.cc of Paddle 2.3 to 3.3 (schema 1.0.0, 1.0.1, 1.0.2), whose versions
differ in blanks at the ends of lines, in colours and in the fields of an operator; and
`write_paddle_json`.
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import NamedTuple

_FIELD = re.compile(r"%(\w)\{(\w*)\}")


class Field(NamedTuple):
    """A field of an `EventPattern`."""

    spec: str
    """The letter after the percent sign."""
    name: str
    """Empty if the value is dropped."""
    before: bytes
    """The literal text between the field before and this one."""
    after: bytes
    """The literal text between this field and the next one."""

    @property
    def indent(self) -> int:
        """Number of bytes before a ``%l`` on its line."""
        return len(self.before.rpartition(b"\n")[2])


class EventPattern:
    """The text layout of one kind of event, as a format string.

    ============  ====================================================================
    ``%d{name}``  an integer without leading zeros
    ``%f{name}``  a number with exactly three decimals; "1.250" becomes 1250
    ``%g{name}``  a number with decimals; inf and nan become NaN
    ``%w{name}``  text right after a quotation mark; contains no quotation mark, no backslash
    ``%l{name}``  any text; no other field may precede it on its line
    ``%o{name}``  a JSON object without braces inside
    ``%s{name}``  any text, but no quotation mark with a comma, colon or brace; only as the first field
    ============  ====================================================================

    Fields are read from the last to the first. A field without a name must match, but its value is
    dropped.

    Args:
        kind: the kind of event, such as ``host``.
        form: the format string.
    """

    def __init__(self, kind: str, form: str) -> None:
        self.kind = kind
        self.form = form

    @cached_property
    def prefix(self) -> bytes:
        """The literal text before the first field."""
        return _FIELD.split(self.form, 1)[0].encode()

    @cached_property
    def fields(self) -> list[Field]:
        """The fields, from the first to the last: a file needs those of one writer's patterns."""
        parts = _FIELD.split(self.form)
        return [
            Field(spec, name, before.encode(), after.encode())
            for before, spec, name, after in zip(parts[0::3], parts[1::3], parts[2::3], parts[3::3])
        ]


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
        EventPattern("host", complete(python, f'{depth},"attributes":%o{{attributes}}')),
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
    is_merged = b'"args":{"rank":' in first[: first.find(b"\n")]  # each event has its rank
    is_own = first.startswith(b'{"name":"') and before == b"\n" and not is_merged
    return "ppprof" if is_own else None
