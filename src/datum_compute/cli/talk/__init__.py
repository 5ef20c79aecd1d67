"""Talking to the platform: which server and project, with which credentials, and waiting for changes."""
