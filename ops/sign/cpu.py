"""sign."""
