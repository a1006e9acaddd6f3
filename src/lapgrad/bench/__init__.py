"""Benchmarks: every operator against torch, in the same process.

timing.py     interleaved timing of several functions
cases.py      one row per operator: its torch peer, its inputs, its flop counts
runner.py     times forward and backward of cases
bars.py       the speed the operators have to reach, and how each of these is measured
coexist.py    lapgrad and torch calls in turns: do their threads get in each other's way?
memory.py     peak memory of one call
sparse_gp.py  the criterion of a sparse Gaussian process against torch, GPyTorch and GPy
exact_gp.py   the criterion of Gaussian process regression
model_cases.py, model_runner.py, models_command.py, plots_models.py  `lapgrad bench models`: these and others
resumption.py results files, gone on with
report.py     tables, Markdown, JSON
results.py    results files: one JSON format for everything that is measured
machine.py    the machine and the moment, stored in these files
command.py    the command `lapgrad bench`
"""
