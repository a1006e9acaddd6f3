"""How lapgrad meets PyTorch: registration of operators, shapes, precision, and its private names."""
