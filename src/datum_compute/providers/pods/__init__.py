"""Runs Instances as Pods of their cell."""
