"""The parts of ``sgp_nll``: statistics of the data, the bound, and its gradient."""
