"""A linear dynamical system by its Kalman filter: the flow of the Nile, with twenty years missing."""

# %% [markdown]
# # Kalman filtering and smoothing
#
# A level that wanders, seen with noise: $h_{t+1} = h_t + \mathcal N(0, q)$, $y_t = h_t + \mathcal N(0, r)$.
# The Kalman filter gives the likelihood of the series, its adjoint the gradient, and the two variances are
# learned by maximum likelihood. No expectation maximisation is needed.
#
# The series is the flow of the Nile at Aswan, 1871 to 1970 (`nile.csv`; without the file one is simulated).

# %%
import argparse
import csv
import os
import time
from pathlib import Path

import torch
from matplotlib import pyplot as plt

from lapgrad.fused import kalman_nll
from lapgrad.models import LinearGaussianSSM, kalman_filter
from lapgrad.models.components import LinearDynamics, LocalLevel

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--quick", action="store_true", help="fewer steps: seconds")
parser.add_argument("--data-dir", type=Path, help="folder with nile.csv [$LAPGRAD_DATA]")
parser.add_argument("--output", type=Path, default=Path(), help="folder for the figures [.]")
options = parser.parse_args()
options.output.mkdir(parents=True, exist_ok=True)

# %%
folder = options.data_dir or Path(os.environ.get("LAPGRAD_DATA", "."))
file = folder / "nile.csv"
generator = torch.Generator().manual_seed(0)
if file.is_file():
    with file.open() as lines:
        rows = list(csv.DictReader(lines))
    years = torch.tensor([int(row["year"]) for row in rows])
    flow = torch.tensor([float(row["volume"]) for row in rows], dtype=torch.float64)
else:
    print(
        f"{file} is not there (the file is among the data sets of R and of statsmodels): a simulated series"
    )
    years = torch.arange(1871, 1971)
    level = 1000 + 38 * torch.randn(100, dtype=torch.float64, generator=generator).cumsum(0)
    flow = level + 123 * torch.randn(100, dtype=torch.float64, generator=generator)

# %% [markdown]
# ## Learning
#
# Nothing is known of the first level; that is treated exactly, and not by a large variance. On the real
# series the variances of Durbin and Koopman come out: 15099 for the observations, 1469 for the level.

# %%
model = LinearGaussianSSM(flow, LocalLevel())
result = model.fit()
print(
    f"noise {model.noise_var.item():.0f}, level {model.component.variance.item():.0f}, "
    f"log likelihood {-result.loss:.2f}, {result.steps} evaluations in {result.seconds:.2f} s"
)
mean, variance = model.forecast(10)
print(f"forecast for {int(years[-1]) + 1}: {mean[0].item():.0f} ± {variance[0].sqrt().item():.0f}")

# %% [markdown]
# ## Missing data
#
# The years 1891 to 1910 are taken out. NaN is all that it takes: the band of the smoothed level opens where
# nothing is seen, and closes again.

# %%
gap = flow.clone()
gap[(years >= 1891) & (years <= 1910)] = torch.nan
with_gap = LinearGaussianSSM(gap, LocalLevel())
with_gap.fit()
middle = int((years == 1900).nonzero())
deviation = with_gap.smooth().covariance[:, 0, 0].sqrt()
print(
    f"standard deviation of the level: {deviation[0].item():.0f} in 1871, {deviation[middle].item():.0f} "
    f"in 1900, "
    f"inside of the gap; learned: noise {with_gap.noise_var.item():.0f}, "
    f"level {with_gap.component.variance.item():.0f}"
)

figure, axes = plt.subplots(1, 2, figsize=(14, 4.5), layout="constrained", sharey=True)
times = torch.arange(int(years[0]), int(years[-1]) + 11)
model.plot(10, times=times, axes=axes[0]).set_title("level, and a forecast of ten years")
with_gap.plot(10, times=times, axes=axes[1]).set_title("1891 to 1910 missing")
figure.savefig(options.output / "kalman_lds.png", dpi=120)

# %% [markdown]
# ## Many series at once, all matrices learned
#
# 32 series of a system with 4 states, of which 2 numbers are seen, different in length. The filter and its
# adjoint run in one call, one series per vector lane.

# %%
count, length = (8, 60) if options.quick else (32, 400)
angle = torch.tensor(0.4, dtype=torch.float64)
rotation = torch.stack((angle.cos(), -angle.sin(), angle.sin(), angle.cos())).view(2, 2)
A = 0.98 * torch.block_diag(rotation, rotation.mT @ rotation.mT)
B = torch.randn(2, 4, dtype=torch.float64, generator=generator)
h = torch.randn(count, 4, dtype=torch.float64, generator=generator)
observed = []
for _ in range(length):
    observed.append(h @ B.mT + 0.5 * torch.randn(count, 2, dtype=torch.float64, generator=generator))
    h = h @ A.mT + 0.3 * torch.randn(count, 4, dtype=torch.float64, generator=generator)
y = torch.stack(observed, 1)
series = [one[: length - 5 * i % (length // 2)] for i, one in enumerate(y)]

# Three starts: the likelihood of learned dynamics has several maxima.
starts = [LinearGaussianSSM(series, LinearDynamics(4, 2, generator=seed)) for seed in range(3)]
found = [start.fit(steps=30 if options.quick else 150) for start in starts]
best = min(range(3), key=lambda i: found[i].loss)
lds = starts[best]
known = kalman_nll(
    lds.y,
    A,
    B,
    0.09 * torch.eye(4, dtype=torch.float64),
    0.25 * torch.eye(2, dtype=torch.float64),
    torch.zeros(4, dtype=torch.float64),
    torch.eye(4, dtype=torch.float64),
).sum()
print(f"learned: {found[best].loss:.1f}; the true system: {known.item():.1f} (negative log likelihoods)")
print("eigenvalues of A, learned:", [f"{abs(e):.2f}" for e in torch.linalg.eigvals(lds.component.A.detach())])

# %% [markdown]
# The criterion alone, value and gradient, against the same filter written step by step in differentiable
# operators:

# %%
leaves = [leaf.clone().requires_grad_() for leaf in (A, B)]
others = (
    0.09 * torch.eye(4, dtype=torch.float64),
    0.25 * torch.eye(2, dtype=torch.float64),
    torch.zeros(4, dtype=torch.float64),
    torch.eye(4, dtype=torch.float64),
)


def seconds(function) -> float:
    begin = time.perf_counter()
    torch.autograd.grad(function(lds.y, *leaves, *others).sum(), leaves)
    return time.perf_counter() - begin


seconds(kalman_nll)
fused, steps = seconds(kalman_nll), seconds(lambda *x: -kalman_filter(*x).log_likelihood)
print(f"value and gradient: {1e3 * fused:.1f} ms; step by step {1e3 * steps:.0f} ms")
