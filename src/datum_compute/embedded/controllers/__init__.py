"""The controllers of a plane: garbage collection, namespaces, definitions and the expiry of Events."""
