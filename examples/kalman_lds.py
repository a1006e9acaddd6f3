"""A linear dynamical system by its Kalman filter: the flow of the Nile, with twenty years missing."""

# %% [markdown]
# # Kalman filtering and smoothing
#
# A level that wanders, seen with noise: $h_{t+1} = h_t + \mathcal N(0, q)$, $y_t = h_t + \mathcal N(0, r)$.
# The Kalman filter gives the likelihood of the series, its adjoint the gradient, and the two variances are
# learned by maximum likelihood. No expectation maximisation is needed.
#
# The series is the flow of the Nile at Aswan, 1871 to 1970.

# %%
import argparse
import time
from pathlib import Path

import numpy as np
import torch
from matplotlib import pyplot as plt

from lapgrad.demo.series import load_nile
from lapgrad.fused import kalman_nll
from lapgrad.models import LinearGaussianSSM, kalman_filter
from lapgrad.models.components import LinearDynamics, LocalLevel

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--quick", action="store_true", help="fewer steps: seconds")
parser.add_argument("--output", type=Path, default=Path(), help="folder for the figures [.]")
options = parser.parse_args()
options.output.mkdir(parents=True, exist_ok=True)

# %%
years, flow = load_nile()
generator = torch.Generator().manual_seed(0)

# %% [markdown]
# ## Learning
#
# Nothing is known of the first level; that is treated exactly, and not by a large variance. The variances of
# Durbin and Koopman come out: 15099 for the observations, 1469 for the level. The summary has standard
# errors, and
# tests of the residuals. Years in, years out: the forecast knows its dates, and so does the plot.

# %%
model = LinearGaussianSSM(flow, LocalLevel(), times=years)
result = model.fit()
print(
    f"noise {model.noise_var.item():.0f}, level {model.component.variance.item():.0f}, "
    f"log likelihood {-result.loss:.2f}, {result.steps} evaluations in {result.seconds:.3f} s"
)
print(model.summary())
mean, variance = model.forecast(10, noise=True)
print(f"forecast for {years[-1] + np.timedelta64(1, 'Y')}: {mean[0]:.0f} ± {variance[0] ** 0.5:.0f}")

figure, axes = plt.subplots(2, 2, figsize=(11, 7), layout="constrained")
model.plot_diagnostics(axes=axes)
figure.savefig(options.output / "kalman_lds_diagnostics.png", dpi=120)

# %% [markdown]
# How good are forecasts ten years ahead? The model learns from the years before each origin, and is compared
# with the
# last value, which is a common forecast of a level, over the last forty years.

# %%
origins = range(60, 90, 10 if options.quick else 5)
errors, naive = [], []
for origin in origins:
    past = LinearGaussianSSM(flow[:origin], LocalLevel())
    past.fit()
    errors.append(past.forecast(10).mean - flow[origin : origin + 10])
    naive.append(flow[origin - 1] - flow[origin : origin + 10])
rmse, naive_rmse = (np.sqrt(np.mean(np.square(e))) for e in (errors, naive))
print(f"ten years ahead, from {len(errors)} origins: RMSE {rmse:.0f} (the last value: {naive_rmse:.0f})")

# %% [markdown]
# ## Missing data
#
# The years 1891 to 1910 are taken out. NaN is all that it takes: the band of the smoothed level opens where
# nothing is seen, and closes again.

# %%
gap = flow.copy()
gap[20:40] = np.nan
with_gap = LinearGaussianSSM(gap, LocalLevel(), times=years)
with_gap.fit()
middle = 29
deviation = with_gap.smooth().covariance[:, 0, 0].sqrt()
print(
    f"standard deviation of the level: {deviation[0].item():.0f} in 1871, {deviation[middle].item():.0f} "
    f"in 1900, "
    f"inside of the gap; learned: noise {with_gap.noise_var.item():.0f}, "
    f"level {with_gap.component.variance.item():.0f}"
)

figure, axes = plt.subplots(1, 2, figsize=(14, 4.5), layout="constrained", sharey=True)
model.plot(10, axes=axes[0]).set(title="level, and a forecast of ten years", ylabel="flow in 10⁸ m³")
with_gap.plot(10, axes=axes[1]).set(title="1891 to 1910 missing", ylabel="")
for one in axes:
    one.set_xlabel("year")
axes[0].get_legend().remove()  # that of the other figure serves both
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
moduli = torch.linalg.eigvals(lds.component.A.detach()).abs()
print("moduli of the eigenvalues of A:", ", ".join(f"{value:.2f}" for value in moduli))

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
