"""The JSON Schemas of what commands print with ``--format json``: a module for each command."""
