"""The parts of state space models."""
