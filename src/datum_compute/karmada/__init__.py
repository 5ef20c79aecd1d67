"""Living with Karmada: what the embedded hub does in its place, and removing what it leaves behind."""
