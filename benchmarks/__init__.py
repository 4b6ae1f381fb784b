"""Benchmarks of ppprof against peers, measured in turn; ``python -m benchmarks`` runs them all."""
