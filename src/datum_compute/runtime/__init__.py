"""The loop: caches, queues and controllers over planes that come and go. Knows nothing of what it controls."""
