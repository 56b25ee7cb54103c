"""Infrastructure of CPU kernels: Numba settings, number of threads, register tiles, non-temporal stores."""
