"""How much work operators do, and how close they come to what their device can do."""
