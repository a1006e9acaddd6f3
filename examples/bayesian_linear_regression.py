"""Bayesian linear regression: which features, how much noise, and how sure the prediction is."""

# %% [markdown]
# # Bayesian linear regression
#
# A function is a weighted sum of features, $f(x) = \sum_j w_j \phi_j(x)$, with normal weights. With the
# weights integrated out, the *marginal likelihood* of the data says how good a choice of features is. Nothing
# has to be held out, and its gradient learns all that the features depend on.

# %%
import argparse
from pathlib import Path

import torch
from matplotlib import pyplot as plt

from lapgrad import NotPositiveDefiniteError
from lapgrad.models import BayesianLinearRegression, PolynomialFeatures, RandomFourierFeatures, blr_nll

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--quick", action="store_true", help="less data, fewer steps: seconds")
parser.add_argument("--output", type=Path, default=Path(), help="folder for the figures [.]")
options = parser.parse_args()
options.output.mkdir(parents=True, exist_ok=True)

# %% [markdown]
# ## The degree of a polynomial
#
# Noisy observations of a curve with a gap in the middle. For each degree we learn the noise and a prior
# variance per power, and look at the marginal likelihood.

# %%
generator = torch.Generator().manual_seed(2)
n = 25 if options.quick else 45
x = torch.rand(n, dtype=torch.float64, generator=generator) * 2 - 1
x = x[(x < -0.2) | (x > 0.5)]
truth = lambda x: 0.8 * torch.sin(4 * x) + 0.5 * x**2
y = truth(x) + 0.1 * torch.randn(len(x), dtype=torch.float64, generator=generator)

degrees = [1, 3, 5, 9] if options.quick else list(range(1, 13))
models = {
    degree: BayesianLinearRegression(x, y, PolynomialFeatures(degree), normalise=False) for degree in degrees
}
evidence = {degree: -model.fit().loss for degree, model in models.items()}
best = max(evidence, key=lambda degree: evidence[degree])
print(f"degree {best} has the largest marginal likelihood: log p(y) = {evidence[best]:.1f}")
print(f"noise: {models[best].noise_var.sqrt().item():.3f} learned, 0.1 in truth")

# %% [markdown]
# ## Random Fourier features
#
# Cosines of random frequencies approximate a Gaussian process with the RBF kernel. The lengthscale is learned
# with the rest. A draw from the posterior of the weights is a whole function.

# %%
fourier = BayesianLinearRegression(
    x, y, RandomFourierFeatures(1, 50, lengthscale=0.4, generator=0), normalise=False
)
result = fourier.fit()
print(
    f"random Fourier features: log p(y) = {-result.loss:.1f}, "
    f"lengthscale {fourier.features.lengthscale.item():.2f}"
)

figure, axes = plt.subplots(1, 3, figsize=(14, 4), layout="constrained")
axes[0].plot(list(evidence), list(evidence.values()), "o-", color="#1f5a99")
axes[0].set(xlabel="degree", ylabel="log marginal likelihood", title="which polynomial?")
x_new = torch.linspace(-1.15, 1.15, 300, dtype=torch.float64)
for place, (name, model) in zip(
    axes[1:], {f"degree {best}": models[best], "Fourier": fourier}.items(), strict=True
):
    model.plot(place, noise=False, margin=0.2)
    with torch.no_grad():
        draws = model.sample(x_new, 4, generator=1)
    drawn = place.plot(x_new, draws.mT, color="#d1495b", linewidth=0.7, alpha=0.7)
    drawn[0].set_label("draws of f")
    place.plot(x_new, truth(x_new), color="0.3", linestyle=":", label="truth")
    place.set(title=name, xlabel="x", ylabel="y", ylim=(-1.6, 1.9), xlim=(-1.15, 1.15))
    place.legend(frameon=False, fontsize=8)
figure.savefig(options.output / "bayesian_linear_regression.png", dpi=120)

# %% [markdown]
# ## LQ or Cholesky?
#
# Features in awkward units: powers of a number between 0 and 1, in units over 8 decades. Cholesky forms their
# products, and squares the condition number; the LQ factorisation does not. Digits that are right in one are
# noise in the other. (In float32, Cholesky fails outright.)

# %%
powers = (torch.linspace(0.0, 1.0, 60, dtype=torch.float64)[:, None]) ** torch.arange(16)
X = powers * 10 ** torch.linspace(0.0, 8.0, 16, dtype=torch.float64)
target = torch.sin(6 * powers[:, 1])


def format_criterion(noise: float, method: str) -> str:
    try:
        return f"{blr_nll(X, target, noise, 1.0, method=method).item():14.6f}"
    except NotPositiveDefiniteError:  # how near to singular the products are depends on rounding
        return f"{'fails':>14}"


print("\nnoise     LQ             Cholesky")
for noise in (1e-2, 1e-4, 1e-6):
    print(f"{noise:.0e}", format_criterion(noise, "lq"), format_criterion(noise, "cholesky"))
try:
    blr_nll(X.float(), target.float(), 1e-4, 1.0, method="cholesky")
except NotPositiveDefiniteError as error:
    print(f"float32, Cholesky: {error}")
print(f"float32, LQ: {blr_nll(X.float(), target.float(), 1e-4, 1.0).item():.2f}")
