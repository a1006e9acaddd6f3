"""The parts of Gaussian process regression."""
