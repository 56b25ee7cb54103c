"""Search for launch parameters and the file that stores them."""
