"""Planning trials, running them in worker processes, and the environment they run in."""
