"""Tables as text, Markdown, JSON and an HTML page."""
