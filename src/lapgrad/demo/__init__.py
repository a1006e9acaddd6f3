"""The demonstration: Gaussian process regression on the CO2 record of Mauna Loa.

carbon.py    the data and their split
gp.py        criterion, kernel, learning, prediction
timing.py    value and gradient: lapgrad against torch.linalg
plot.py      the figure
command.py   the command `lapgrad demo`
"""
