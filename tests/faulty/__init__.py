"""Kernels that fail in every way a kernel can; workers load them when a test tells them to."""
