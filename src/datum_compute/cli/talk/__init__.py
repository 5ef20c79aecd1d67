"""Talking to the platform: the target of a command, credentials, calls, and waiting for changes."""
