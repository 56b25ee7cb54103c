"""Planning trials, running them in worker processes, and their environment."""
