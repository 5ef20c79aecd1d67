"""What a plane does by itself: collection, namespaces and definitions."""
