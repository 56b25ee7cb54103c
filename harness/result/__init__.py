"""Results and whole runs as values and JSON, their summaries, and the checks of what comes from elsewhere."""
