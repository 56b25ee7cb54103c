"""mean on the CPU."""
