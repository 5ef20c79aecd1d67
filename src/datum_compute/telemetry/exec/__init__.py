"""Commands that users run in their Instances."""
