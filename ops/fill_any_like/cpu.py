"""fill_any_like."""
