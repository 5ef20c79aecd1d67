"""The roles that planes play. Entry points: the constants."""

ROOT = "root"
PROJECT = "project"
HUB = "hub"
CELL = "cell"
CLAIMS = "claims"  # a project plane as a cell uses it: where quota is claimed
