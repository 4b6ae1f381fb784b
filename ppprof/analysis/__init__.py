"""The events table to small tables: the nine summaries."""
