"""What a schema makes of values: pruning, defaults and validation."""
