"""What runs Instances: turns an Instance without gates into something that runs, and reports on it."""
