"""The rules that need the cluster: what a project may ask for."""
