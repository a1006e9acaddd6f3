"""Sparse Gaussian process: ten thousand observations through a few inducing inputs that are learned."""

# %% [markdown]
# # Sparse Gaussian process regression
#
# A Gaussian process of $n$ observations takes $n^3$ operations and $n^2$ memory. Seen through its values at
# $U$ *inducing inputs* it takes $n U^2$ and $U^2$. The inducing inputs are parameters like all others: the
# bound $-\log N(y \mid 0, Q + \sigma^2 I) + \tfrac{1}{2\sigma^2} \mathrm{tr}(K - Q)$ with
# $Q = K_{fu} K_{uu}^{-1} K_{uf}$ (Titsias 2009) says how good they are, and its gradient moves them.

# %%
import argparse
from pathlib import Path

import torch
from matplotlib import pyplot as plt

from lapgrad.models import GPRegression, SparseGPRegression
from lapgrad.models.kernels import RBF
from lapgrad_bench import datasets

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--quick", action="store_true", help="made-up data, few of them: seconds")
parser.add_argument("--data-dir", type=Path, help=f"folder with {datasets.POWER.file} [LAPGRAD_DATA]")
parser.add_argument("--inducing", type=int, help="largest number of inducing inputs [200]")
parser.add_argument("--output", type=Path, default=Path(), help="folder for the figures [.]")
options = parser.parse_args()
options.output.mkdir(parents=True, exist_ok=True)

# %% [markdown]
# ## Where inducing inputs go
#
# Twelve of them start at random rows of the data, and spread while they are learned. The exact process with
# the same parameters says how much is lost: the bound lies above its negative log likelihood.

# %%
generator = torch.Generator().manual_seed(0)
x = torch.rand(200 if options.quick else 500, dtype=torch.float64, generator=generator) * 6
y = torch.sin(3.0 * x) + 0.5 * x + 0.2 * torch.randn(len(x), dtype=torch.float64, generator=generator)
model = SparseGPRegression(x, y, RBF(1.0), inducing=12, init="random", generator=0, normalise=False)
first = model.loss().item()
result = model.fit(steps=40 if options.quick else 300)
exact = GPRegression(
    x, y, RBF(model.kernel.lengthscale, model.kernel.variance), noise_var=model.noise_var, normalise=False
)
print(f"bound of -log p(y): {first:.1f} at the start, {result.loss:.1f} after {result.steps} evaluations")
print(f"-log p(y) of the exact process with these parameters: {exact.loss().item():.1f}")

figure, axes = plt.subplots(1, 2, figsize=(13, 4.5), layout="constrained")
model.plot(axes[0])
axes[0].set(title="12 inducing inputs, learned", xlabel="x", ylabel="y")

# %% [markdown]
# ## A power plant
#
# 9568 hours: the output of a plant from temperature, vacuum, pressure and humidity. A tenth is kept for
# testing. More inducing inputs bring the model closer to the exact process, at a price that grows with
# their square.

# %%
try:
    X, y = datasets.make_stand_in(600) if options.quick else datasets.load("power", options.data_dir)
except FileNotFoundError as missing:
    print(f"{missing}\nMade-up data take their place.")
    X, y = datasets.make_stand_in()
order = torch.randperm(len(X), generator=generator)
test, train = order[: len(X) // 10], order[len(X) // 10 :]
largest = options.inducing or (20 if options.quick else 200)
sizes = [size for size in (5, 10, 20, 50, 100, 200, 400, 800) if size < largest] + [largest]
errors, densities = [], []
print(f"\n{len(train)} observations\n\n   U   RMSE   mean log density   seconds   evaluations")
for size in sizes:
    model = SparseGPRegression(X[train], y[train], inducing=size, normalise=True, generator=1)
    result = model.fit(steps=10 if options.quick else 60)
    mean, _ = model.predict(X[test])
    errors.append((mean - y[test]).square().mean().sqrt().item())
    densities.append(model.log_prob(X[test], y[test]).mean().item())
    print(f"{size:4d}{errors[-1]:7.3f}{densities[-1]:19.3f}{result.seconds:10.1f}{result.steps:14d}")

axes[1].plot(sizes, errors, "o-", color="#1f5a99")
axes[1].set(xscale="log", xlabel="inducing inputs", ylabel="RMSE on test data", title="how many?")
axes[1].set_xticks(sizes, map(str, sizes), minor=False)
axes[1].set_xticks([], minor=True)
figure.savefig(options.output / "sparse_gp.png", dpi=120)

# %% [markdown]
# ## float32
#
# In float32 the kernel matrix of many inducing inputs has no Cholesky factor. The criterion does all of its
# arithmetic in float64, chunk by chunk, so that float32 models need no larger jitter, and give the same
# result.

# %%
inducing = X[train[: 300 if options.quick else 800]]
double = SparseGPRegression(X[train], y[train], inducing=inducing, normalise=True)
single = SparseGPRegression(X[train].float(), y[train].float(), inducing=inducing.float(), normalise=True)
losses = {name: each.loss().item() for name, each in (("float64", double), ("float32", single))}
print(
    f"\n{len(inducing)} inducing inputs: {losses['float64']:.2f} (float64), {losses['float32']:.2f} (float32)"
)

# %% [markdown]
# ## Files
#
# Data, parameters and the description of the kernel go into one file, which holds no code.

# %%
model.save(options.output / "sparse_gp.pt")
loaded = SparseGPRegression.load(options.output / "sparse_gp.pt")
same = torch.equal(loaded.predict(X[test]).mean, model.predict(X[test]).mean)
(options.output / "sparse_gp.pt").unlink()
print(f"\nsaved, loaded, and predicting the same: {same}")
