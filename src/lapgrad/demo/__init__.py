"""The command `lapgrad demo`: a tour of Gaussian process regression on CO2 measurements, and the examples.

carbon.py    the data of the tour: loads and splits them
model.py     the model of the tour: kernel, learning, prediction
series.py    the time series of the examples
timing.py    times value and gradient against torch.linalg
plot.py      draws the figure
examples.py  finds and runs the scripts in examples/
notebook.py  converts a script to a notebook
command.py   the command
"""
