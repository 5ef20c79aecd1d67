"""Runs Instances as containers of the engine on this machine."""
