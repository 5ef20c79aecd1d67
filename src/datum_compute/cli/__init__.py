"""The `compute` command: one module a verb in `commands`, deciding, talking and showing in places of their own."""
