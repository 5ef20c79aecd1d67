"""Server-side apply: sets of fields and who owns them."""
