"""What every op stands on: ops, kernels, the registry, dtypes, backends, CUDA compilation."""
