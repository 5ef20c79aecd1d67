"""Management: workloads become deployments, deployments reach the hub, and their truth is seen in the project."""
