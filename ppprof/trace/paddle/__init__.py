"""Read and write Paddle's two trace formats: its JSON dialect and ``.pb``."""
