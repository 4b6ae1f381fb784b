"""The compiled core: its C sources, and the scanner that calls it."""
