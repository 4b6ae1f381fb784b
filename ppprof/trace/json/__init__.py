"""Trace-event JSON of any writer, as events one by one: sound, broken or cut."""
