"""All ranks together: step parts, collectives, stragglers, what-if."""
