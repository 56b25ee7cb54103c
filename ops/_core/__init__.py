"""Foundation of every op: ops, kernels, the registry, dtypes, backends, axes, graphs."""
