"""The engine that runs containers on this machine: found, asked and followed."""
