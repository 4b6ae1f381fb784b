"""The data that a report page shows, computed in one pass over the traces."""
