"""One plane: how its requests are read, checked, written and answered."""
