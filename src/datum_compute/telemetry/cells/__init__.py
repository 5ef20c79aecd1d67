"""Logs of Instances, read live at their sites."""
