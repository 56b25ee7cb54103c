"""Reductions on CUDA: `plan` chooses kernel, grid and block from facts alone; `launch` binds them to arrays."""
