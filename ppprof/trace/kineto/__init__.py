"""PyTorch's trace format, read."""
