"""What the state of all objects means, decided without I/O: health, progress, causes."""
