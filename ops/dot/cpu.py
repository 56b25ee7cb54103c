"""dot on the CPU."""
