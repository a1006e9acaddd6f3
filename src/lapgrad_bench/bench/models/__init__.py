"""Benchmarks of models: the value and the gradient of their criteria.

cases.py      all cases, with the figures they must reach
runner.py     times a case and measures its memory
exact_gp.py   Gaussian process regression
sparse_gp.py  sparse Gaussian process regression
deep_gp.py    the bound of a deep Gaussian process, and training steps
plots.py      time and memory over the number of inducing inputs
"""
