"""What a process reports about itself: logs, metrics and health."""
