"""Bilinear samples of padded images inside Numba kernels; the functions are in `ops._cpu.bilinear.jit`."""
