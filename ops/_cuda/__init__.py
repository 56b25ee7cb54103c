"""Infrastructure that CUDA kernels share: compiling, launching, reductions, matrix products."""
