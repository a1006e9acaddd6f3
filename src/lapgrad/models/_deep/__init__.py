"""The parts of deep Gaussian processes."""
