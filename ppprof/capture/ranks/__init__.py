"""What ranks agree on while they train: their places, clocks and windows on demand."""
