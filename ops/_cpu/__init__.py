"""What CPU kernels of several ops share: Numba settings, register tiles, non-temporal stores."""
