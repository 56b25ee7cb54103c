"""deformable_conv on CUDA."""
