"""Benchmarks of operators at random sizes.

draw.py      draws the cases of a seed: operator, dtype, order, sides and batch
summary.py   compares libraries case by case, and sums the comparisons up in tables
heatmaps.py  speed-up over order and batch, one map per operator
"""
