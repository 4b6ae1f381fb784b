"""Tables and findings as text; one module for each command."""
