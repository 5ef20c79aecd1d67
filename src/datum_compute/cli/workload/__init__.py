"""Changes to workloads: plans, edits, manifests, revisions, and following a rollout."""
