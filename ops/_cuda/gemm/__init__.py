"""Matrix products on CUDA: configurations, their choice and their launch."""
