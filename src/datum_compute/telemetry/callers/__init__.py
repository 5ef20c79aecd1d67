"""Who calls, for which project, and what they may look into."""
