"""An exact Gaussian process whose covariance is spread over several processes."""

# %% [markdown]
# # One covariance, many processes
#
# The covariance of $n$ observations has $n^2$ entries. Here each process holds some blocks of it, and all of
# them learn the model together. The program is the same for one process and for many; only the command
# differs:
#
#     python examples/distributed_exact_gp.py
#     mpiexec -n 4 python examples/distributed_exact_gp.py --observations 20000
#
# `make_grid` arranges the processes that `mpiexec` has started in rows and columns. Started alone, the
# program has a grid of one process, and needs no MPI.

# %%
import argparse
from pathlib import Path

import torch
from matplotlib import pyplot as plt

from lapgrad.distributed import make_grid
from lapgrad.models import GPRegression
from lapgrad.models.kernels import Matern52

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--quick", action="store_true", help="few observations, a short fit: seconds")
parser.add_argument("--observations", type=int, default=2000, help="how many [2000]")
parser.add_argument("--output", type=Path, default=Path(), help="folder for the figure [.]")
options = parser.parse_args()
n = 300 if options.quick else options.observations

grid = make_grid()
if grid.is_first:
    print(grid)

# %% [markdown]
# All processes make the same data: here from the same seed, otherwise from the same file. Data are small; it
# is the covariance that is large.

# %%
generator = torch.Generator().manual_seed(0)
X = torch.rand(n, 2, generator=generator, dtype=torch.float64)
f = torch.sin(9 * X[:, 0]) * torch.cos(5 * X[:, 1])
y = f + 0.1 * torch.randn(n, generator=generator, dtype=torch.float64)

# %% [markdown]
# The model takes the grid as `distributed=`. `fit`, `predict` and `log_prob` then work together; every
# process gets the same result, to the last bit.

# %%
model = GPRegression(X, y, Matern52(ard=True), distributed=grid)
result = model.fit(starts=1, steps=10 if options.quick else 30)
line = torch.linspace(0, 1, 100, dtype=torch.float64)
mean, variance = model.predict(torch.stack([line, torch.full_like(line, 0.5)], 1))
if grid.is_first:
    print(result)
    held = grid.make_layout(n, n).local_shape
    print(f"process 0 holds {held[0]} x {held[1]} of {n} x {n} entries of the covariance")

# %% [markdown]
# Process 0 draws, and would write files.

# %%
if grid.is_first:
    figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
    deviation = variance.sqrt()
    axes.fill_between(line, mean - 2 * deviation, mean + 2 * deviation, alpha=0.3, label="two deviations")
    axes.plot(line, mean, label="mean")
    axes.plot(line, torch.sin(9 * line) * torch.cos(torch.tensor(2.5)), "--", label="truth")
    axes.set(xlabel="first coordinate", ylabel="f, second coordinate 0.5")
    axes.set_title(f"{n} observations, processes: {grid.size}")
    axes.legend()
    options.output.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.output / "distributed_exact_gp.png", dpi=120)
