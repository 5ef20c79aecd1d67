"""Providers run Instances that have no gates left, and report their state."""
