"""The demonstrations: a tour of Gaussian process regression on the CO2 record of Mauna Loa, and the examples.

carbon.py    the data of the tour and their split
gp.py        criterion, kernel, learning, prediction
timing.py    value and gradient: lapgrad against torch.linalg
plot.py      the figure
examples.py  the scripts in examples/, found and run
notebook.py  a script as a notebook
command.py   the command `lapgrad demo`
"""
