"""What is done to a workload: plans, edits, manifests, revisions, and following a rollout."""
