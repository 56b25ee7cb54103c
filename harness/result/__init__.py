"""Results and whole runs as values and JSON, their summaries, and checks of results from other machines."""
