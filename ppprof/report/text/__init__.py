"""Tables as text, one module per command."""
