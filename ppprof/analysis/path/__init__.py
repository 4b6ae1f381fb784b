"""What a step's length depends on: the graph of all ranks' work, its critical path, and replays."""
