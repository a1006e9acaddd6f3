"""Gaussian process regression: a forecast of CO2 in the air over Mauna Loa from a kernel of several parts."""

# %% [markdown]
# # Gaussian process regression
#
# Observations $y_i = f(x_i) + \varepsilon_i$ of a function with covariance $k(x, z)$. The kernel says what we
# believe about the function. Its hyper-parameters are learned by the marginal likelihood,
# $-\log p(y) = \tfrac{1}{2} r^\top A^{-1} r + \tfrac{1}{2} \log\det A + \tfrac{n}{2} \log 2\pi$, where
# $A = K + \sigma^2 I$.

# %%
import argparse
import csv
from importlib.resources import files
from pathlib import Path

import torch
from matplotlib import pyplot as plt

from lapgrad.models import GPRegression
from lapgrad.models.kernels import RBF, Periodic, RationalQuadratic

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--quick", action="store_true", help="fewer steps: seconds")
parser.add_argument("--output", type=Path, default=Path(), help="folder for the figures [.]")
parser.add_argument("--data-dir", type=Path, help="folder with co2_monthly.csv [the one in the package]")
options = parser.parse_args()
options.output.mkdir(parents=True, exist_ok=True)

# %% [markdown]
# ## The data
#
# Monthly means in parts per million. We learn from the years before 1988 and forecast the ten years after.

# %%
source = files("lapgrad") / "data" if options.data_dir is None else options.data_dir
with (source / "co2_monthly.csv").open() as lines:
    rows = [(row["month"].split("-"), float(row["co2_ppm"])) for row in csv.DictReader(lines)]
years = torch.tensor([int(year) + (int(month) - 0.5) / 12 for (year, month), _ in rows], dtype=torch.float64)
ppm = torch.tensor([value for _, value in rows], dtype=torch.float64)
cut = 1988
train, test = years < cut, years >= cut
print(f"{int(train.sum())} months to learn from, {int(test.sum())} to forecast")

# %% [markdown]
# ## The kernel
#
# A smooth trend over decades, plus a season whose shape drifts, plus irregularities of several time scales.
# Sums and products of kernels are kernels. All of it departs from a line, the mean function. The period of
# a year is known, and stays fixed.

# %%
trend = RBF(lengthscale=50.0, variance=2000.0, name="trend")
season = Periodic(period=1.0, lengthscale=1.0, variance=10.0, name="year") * RBF(60.0, name="drift")
weather = RationalQuadratic(lengthscale=1.0, variance=1.0, name="weather")
model = GPRegression(
    years[train], ppm[train], trend + season + weather, noise_var=0.1, mean="linear", normalise=False
)
model.fix("kernel.parts.1.year.period", "kernel.parts.1.drift.variance")

# %% [markdown]
# ## Learning
#
# L-BFGS on value and gradient of the marginal likelihood. Each evaluation takes $n^3$ flops, and two to
# three $n^2$ buffers.

# %%
before = model.loss().item()
result = model.fit(steps=80 if options.quick else 200)
print(f"-log p(y): {before:.1f} -> {result.loss:.1f} in {result.steps} evaluations, {result.seconds:.1f} s")
print(result.reason)
print(model.summary())

# %% [markdown]
# ## The forecast
#
# Against what needs no model: last year once more, plus the mean rise of the last ten years.

# %%
mean, variance = model.predict(years[test], noise=True)
ahead = torch.arange(int(test.sum()))
last = ppm[train][-12:]
rise = (last.mean() - ppm[train][-132:-120].mean()) / 10
naive = last[ahead % 12] + rise * (ahead // 12 + 1)
inside = (mean - ppm[test]).abs() < 1.96 * variance.sqrt()
density = model.log_prob(years[test], ppm[test])
for text, forecast in (("process", mean), ("last year with drift", naive)):
    print(f"{text:<22} RMSE {(forecast - ppm[test]).square().mean().sqrt().item():.2f} ppm")
print(f"{100 * inside.double().mean().item():.0f} % of the test months lie in the 95 % band")
print(f"mean log density of a test month: {density.mean().item():.2f}")

# %%
figure, (whole, close, curve) = plt.subplots(
    3, 1, figsize=(10, 10), height_ratios=(3, 3, 1.6), layout="constrained"
)
for axes, start in ((whole, float(years[train][0])), (close, cut - 3)):
    x = torch.linspace(start, float(years[-1]), 1500, dtype=torch.float64)
    shown_mean, shown_variance = model.predict(x, noise=True)
    deviation = 1.96 * shown_variance.sqrt()
    axes.fill_between(
        x,
        shown_mean - deviation,
        shown_mean + deviation,
        color="#1f5a99",
        alpha=0.18,
        linewidth=0,
        label="95% band",
    )
    axes.plot(x, shown_mean, color="#1f5a99", linewidth=1, label="mean")
    for chosen, colour, text in ((train, "#3c3c3c", "training months"), (test, "#d1495b", "test months")):
        visible = chosen & (years >= start)
        axes.scatter(years[visible], ppm[visible], s=6, color=colour, zorder=3, linewidths=0, label=text)
    axes.axvline(cut, color="0.5", linestyle="--", linewidth=1)
    axes.set(xlabel="year", ylabel="ppm", xlim=(start, float(years[-1]) + 0.2))
close.plot(
    years[test],
    model.sample(years[test], 3, generator=0).mT,
    color="#1f5a99",
    linewidth=0.6,
    alpha=0.6,
    label=["draws of the function", None, None],
)
for axes in (whole, close):
    axes.legend(frameon=False, loc="upper left")
whole.set_title("CO₂ at Mauna Loa: fit and forecast")
close.set_title("the forecast, with three draws of the function")
result.plot(curve)
figure.savefig(options.output / "gp_regression.png", dpi=120)

# %% [markdown]
# ## Files
#
# A file holds the data, the parameters and a description of the kernel, and no code. The model read from it
# predicts the same, to the last bit.

# %%
path = options.output / "gp_regression.pt"
model.save(path)
again = GPRegression.load(path)
assert torch.equal(again.predict(years[test]).mean, model.predict(years[test]).mean)
print(f"saved to {path} ({path.stat().st_size / 1024:.0f} kB), and loaded with equal predictions")
