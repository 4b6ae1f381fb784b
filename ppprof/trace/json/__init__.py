"""Trace-event JSON of any writer as single events. The file may be valid, broken or truncated."""
