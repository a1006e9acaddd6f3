"""Arrays of NumPy and objects of pandas in and out of models."""
