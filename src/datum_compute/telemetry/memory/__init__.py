"""Logs of a local federation, in the memory of its process."""
