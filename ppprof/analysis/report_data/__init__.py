"""Everything that a report shows, computed in one pass."""
