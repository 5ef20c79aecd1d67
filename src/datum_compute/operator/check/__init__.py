"""compute-manager check: whether a process could start and work with these settings."""
