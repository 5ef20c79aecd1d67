"""Structural schemas: pruning, defaults and validation."""
