"""Paddle's two trace formats, read and written."""
