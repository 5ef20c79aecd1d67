"""The roles that planes play. Entry points: the constants."""

PROJECT = "project"
HUB = "hub"
CELL = "cell"
