"""What happens inside a window: the recorder, windows on disk, collectives."""
