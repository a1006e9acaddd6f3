"""The interface to PyTorch: registration of operators, shapes, precision, and private names of torch."""
