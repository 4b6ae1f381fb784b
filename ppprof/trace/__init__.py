"""Files to the events table, and back: readers and writers of traces."""

from ppprof.trace.files import read
from ppprof.trace.paddle_json import write_paddle_json
from ppprof.trace.paddle_pb import read_paddle_pb
from ppprof.trace.schema import Trace

__all__ = ["Trace", "read", "read_paddle_pb", "write_paddle_json"]
