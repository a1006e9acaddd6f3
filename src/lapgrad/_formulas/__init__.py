"""Formulas that kernels of several devices share, in plain PyTorch."""
