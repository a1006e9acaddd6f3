"""Benchmarks of operators.

cases.py       one row per operator: the function of torch it is compared with, inputs, flop counts
inputs.py      generators of inputs
in_torch.py    the operators as a user of torch writes them
agreement.py   compares results and gradients before anything is timed
gemm.py        torch.mm, whose speed every operator is compared with
runner.py      times the forward and backward pass of a case
peer_cases.py  runs a case in the processes of other libraries
bars.py        the speed that operators must reach, and how each figure is measured
coexist.py     measures whether lapgrad's and torch's threads disturb each other
plan.py        chooses the cases of a run
comparison.py  finds what got slower between two results files
tables.py      rows of results as tables; plots.py: as figures
"""
