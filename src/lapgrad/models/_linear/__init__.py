"""The parts of Bayesian linear regression."""
