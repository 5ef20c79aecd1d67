"""Management: turns workloads into deployments, sends them to the hub, and reports their state in the project."""
