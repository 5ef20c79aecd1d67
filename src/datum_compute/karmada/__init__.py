"""Living with Karmada: standing in for it on the embedded hub, and removing what it leaves behind."""
