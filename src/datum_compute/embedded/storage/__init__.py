"""The append-only log, the objects derived from it, and how writes reach both."""
