"""Shared by CPU kernels: Numba settings, the number of threads, register tiles, non-temporal stores."""
