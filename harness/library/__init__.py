"""Library interface: measure from Python, and read stored results as tables."""
