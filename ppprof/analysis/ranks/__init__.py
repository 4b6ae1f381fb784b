"""All ranks together: the parts of their steps, collectives, stragglers and what-if replays."""
