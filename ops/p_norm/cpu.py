"""p_norm."""
