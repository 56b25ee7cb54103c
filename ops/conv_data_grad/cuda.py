"""conv_data_grad on CUDA."""
