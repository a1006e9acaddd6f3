"""Gaussian processes with any likelihood, by variational inference on minibatches: one file per model."""
