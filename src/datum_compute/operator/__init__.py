"""compute-manager: which controllers run where."""
