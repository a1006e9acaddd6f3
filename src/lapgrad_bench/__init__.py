"""Measures lapgrad: benchmarks, the experiments of the paper, and a report of both.

lapgrad never imports this package. The commands `lapgrad bench`, `lapgrad reproduce` and `lapgrad report`
find it if it is installed.
"""
