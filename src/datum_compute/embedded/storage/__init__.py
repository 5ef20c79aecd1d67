"""The append-only log, the state derived from it, and the writers of both."""
