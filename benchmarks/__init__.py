"""Numbers against a peer, measured in one run; ``python -m benchmarks`` prints them all."""
