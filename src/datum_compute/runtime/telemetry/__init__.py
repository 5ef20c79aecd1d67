"""What a process reports about itself: logs, metrics, spans and health."""
