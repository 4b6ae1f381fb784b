"""Profile Paddle hybrid-parallel training from one YAML block."""
