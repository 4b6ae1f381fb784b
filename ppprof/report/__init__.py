"""Tables to what people read: text, JSON."""
