"""Kernels that cheat, or break what comes after them, in every way that a benchmark has been seen to miss."""
