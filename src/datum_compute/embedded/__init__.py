"""The Kubernetes API in this process: every plane over one append-only log in one SQLite file."""
