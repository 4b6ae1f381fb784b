"""Small tables computed from the events table, with a folder for the subject of each command."""
