"""The reference harness: real training of a small GPT, to profile."""
