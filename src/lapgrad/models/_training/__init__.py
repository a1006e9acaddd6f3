"""Fitting: optimisers, minibatches, CUDA graphs and progress."""
