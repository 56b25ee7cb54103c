"""What CUDA kernels of several ops share: compiling, launching, reductions, matrix products."""
