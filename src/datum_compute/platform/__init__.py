"""The built-ins: controllers that stand in for Milo and the network operator, with the same objects."""
