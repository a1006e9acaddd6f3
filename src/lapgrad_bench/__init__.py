"""Benchmarks, the experiments of the paper, and the report of both: what measures lapgrad.

lapgrad never imports this package. The commands `lapgrad bench`, `lapgrad reproduce` and `lapgrad report`
find it if it is installed.
"""
