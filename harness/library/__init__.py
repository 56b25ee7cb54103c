"""opgauge as a library: measure from Python, and read stored results as tables."""
