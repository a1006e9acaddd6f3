"""Experiments of the paper, repeated from their data: `lapgrad reproduce`.

datasets.py   tables of measurements, read from a folder
paper.py      the figures of the paper
command.py    the command, and the list of experiments
table1.py     sparse Gaussian processes on four tables: errors and densities of test data
folds.py      one fold of it: split, model, learning with checkpoints, test
quality.py    its figures over folds, beside those of the paper
workers.py    folds one by one or side by side
deep_gp_regression.py  deep and sparse processes on the same splits
interruption.py  Ctrl-C and time limits
time_left.py  progress
"""
