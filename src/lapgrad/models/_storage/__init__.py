"""Saving models to files, and loading them."""
