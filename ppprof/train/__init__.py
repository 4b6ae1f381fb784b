"""The reference harness: it trains a small GPT, so that there is a real training to profile."""
