"""What instances write and run, for their users to look into: logs and commands."""
