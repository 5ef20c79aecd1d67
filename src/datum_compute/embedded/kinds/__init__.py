"""The kinds that planes serve."""
