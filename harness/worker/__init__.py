"""Code of the worker process: seeded inputs; kernels called, checked and measured; the contract with `ops`."""
