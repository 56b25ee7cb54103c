"""flatten."""
