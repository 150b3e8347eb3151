"""Pages that need nothing else: HTML from plain functions, one style, no script, no network."""
