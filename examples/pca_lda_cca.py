"""PCA, LDA and CCA as layers: networks learned through the directions and spectra they give."""

# %% [markdown]
# # Learning through PCA, LDA and CCA
#
# Principal components, linear discriminants and canonical correlations come from eigen- and singular value
# decompositions. With gradients for these, what goes *into* them can be learned: three small cases.

# %%
import argparse
from pathlib import Path

import torch
from matplotlib import pyplot as plt
from torch import nn

import lapgrad

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--quick", action="store_true", help="less data, fewer steps: seconds")
parser.add_argument("--output", type=Path, default=Path(), help="folder for the figures [.]")
options = parser.parse_args()
options.output.mkdir(parents=True, exist_ok=True)
generator = torch.Generator().manual_seed(0)
n = 150 if options.quick else 600
steps = 60 if options.quick else 250


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def network(inputs: int, outputs: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(inputs, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, outputs)
    ).double()


def learn(loss, parameters, lr: float = 0.01) -> float:
    optimizer = torch.optim.Adam(parameters, lr=lr)
    for _ in range(steps):
        optimizer.zero_grad()
        value = loss()
        value.backward()
        optimizer.step()
    return value.item()


# %% [markdown]
# ## LDA: rings that no line tells apart
#
# Three classes on rings. Their means coincide, so Fisher's ratio of variance between classes to variance
# within is nearly zero in every direction. We learn a network whose outputs have large ratios: the smaller of
# the two counts, so that both directions are of use. Half of the data is kept for the test.

# %%
labels = torch.arange(n) % 3
angle = 2 * torch.pi * torch.rand(n, dtype=torch.float64, generator=generator)
radius = 1.0 + labels + 0.2 * normal(n)
rings = torch.stack([radius * angle.cos(), radius * angle.sin()], 1)
train, test = slice(None, n // 2), slice(n // 2, None)

to_discriminate = network(2, 2, seed=1)


def discriminant_loss() -> torch.Tensor:
    ratios, _ = lapgrad.linalg.lda(to_discriminate(rings[train]), labels=labels[train], regularisation=1e-3)
    return -torch.log(ratios).min()


def nearest_mean_error(features: torch.Tensor) -> float:
    """Of the test data, classified by the nearest class mean along the discriminants of the training data."""
    W = lapgrad.linalg.lda(features[train], labels=labels[train], regularisation=1e-3).W
    means = torch.stack([(features[train][labels[train] == c] @ W).mean(0) for c in range(3)])
    return float((torch.cdist(features[test] @ W, means).argmin(1) != labels[test]).double().mean())


before = lapgrad.linalg.lda(rings[train], labels=labels[train]).ratios
learn(discriminant_loss, to_discriminate.parameters())
with torch.no_grad():
    learned = to_discriminate(rings)
    after = lapgrad.linalg.lda(learned[train], labels=labels[train], regularisation=1e-3).ratios
    print(
        f"LDA: ratios {[round(r, 2) for r in before.tolist()]} before, "
        f"{[round(r) for r in after.tolist()]} after"
    )
    print(f"     test error {nearest_mean_error(rings):.2f} before, {nearest_mean_error(learned):.2f} after")

# %% [markdown]
# ## CCA: what two views have in common
#
# Two sensors see the same hidden number $s$, one bends it into a spiral, the other into a wave. Linear CCA
# finds little that they share. Two networks, learned so that their outputs correlate, find a function of $s$
# that both views know (deep CCA, Andrew et al., 2013), though neither has ever seen $s$.

# %%
s = 3 * torch.rand(n, dtype=torch.float64, generator=generator) - 1.5
spiral = torch.stack([(2 + s) * torch.cos(6 * s), (2 + s) * torch.sin(6 * s)], 1) + 0.05 * normal(n, 2)
wave = torch.stack([s**2, torch.sin(4 * s) + 0.2 * s, normal(n)], 1) + 0.05 * normal(n, 3)
left, right = network(2, 1, seed=2), network(3, 1, seed=3)


def correlation_loss() -> torch.Tensor:
    return -lapgrad.linalg.cca(
        left(spiral[train]), right(wave[train]), regularisation=1e-4
    ).correlations.sum()


linear = lapgrad.linalg.cca(spiral[train], wave[train], k=1)
learn(correlation_loss, [*left.parameters(), *right.parameters()])


def correlation(a: torch.Tensor, b: torch.Tensor) -> float:
    return abs(float(torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1]))


with torch.no_grad():
    shared_left, shared_right = left(spiral), right(wave)
    seen = correlation(spiral[test] @ linear.A, wave[test] @ linear.B)
    print(
        f"CCA: test correlation {seen:.2f} linear, "
        f"{correlation(shared_left[test], shared_right[test]):.2f} learned"
    )

# %% [markdown]
# ## PCA: which variables matter?
#
# Forty variables in arbitrary units, of which six carry two hidden factors; some of the others vary much
# more. PCA follows the largest variances, and finds noise. A few rows come with the value of the factors. We
# learn a weight per variable such that linear regression on the first two principal *scores* gives them.
# Gradients flow through the regression and through the components.

# %%
factors = normal(n, 2)
loading = torch.zeros(2, 40, dtype=torch.float64)
loading[:, :6] = normal(2, 6)
units = torch.cat(
    [torch.ones(6, dtype=torch.float64), 4 * torch.rand(34, dtype=torch.float64, generator=generator)]
)
measured = (factors @ loading + 0.3 * normal(n, 40)) * units
measured[:, 6:] += units[6:] * normal(n, 34)
known = slice(None, 40)
log_weights = torch.zeros(40, dtype=torch.float64, requires_grad=True)


def unexplained(rows: slice, weights: torch.Tensor) -> torch.Tensor:
    scores = lapgrad.linalg.pca(measured * weights, k=2).scores
    A = torch.cat([torch.ones_like(scores[:, :1]), scores], 1)
    C = lapgrad.linalg.lstsq(A[known], factors[known])
    return (factors[rows] - A[rows] @ C).square().mean()


ones = torch.ones(40, dtype=torch.float64)
plain = unexplained(test, ones).item()
learn(lambda: unexplained(known, torch.softmax(log_weights, 0)), [log_weights], lr=0.05)
with torch.no_grad():
    weights = torch.softmax(log_weights, 0)
    print(
        f"PCA: {plain:.2f} of the factors' variance is unexplained with equal weights, "
        f"{unexplained(test, weights).item():.2f} with learned ones"
    )

# %%
figure, axes = plt.subplots(2, 3, figsize=(12, 7.5), layout="constrained")
colours = ["#1f5a99", "#d1495b", "#3c8d40"]
for place, points, title in (
    (axes[0, 0], rings, "three rings"),
    (axes[1, 0], learned, "LDA of a learned network"),
):
    if points is learned:
        points = (
            points @ lapgrad.linalg.lda(learned[train], labels=labels[train], regularisation=1e-3).W.detach()
        )
    for c in range(3):
        place.scatter(*points[test][labels[test] == c].T, s=9, color=colours[c], label=f"ring {c + 1}")
    what = "discriminant" if points is not rings else "coordinate"
    place.set(title=title + " (test data)", xlabel=f"first {what}", ylabel=f"second {what}")
    place.legend(fontsize=8)
axes[0, 1].scatter(spiral[:, 0], spiral[:, 1], c=s, s=9, cmap="viridis")
axes[0, 1].set(
    title="view 1 of a hidden number (colour)", xlabel="first coordinate", ylabel="second coordinate"
)
axes[1, 1].scatter(shared_left[test], shared_right[test], c=s[test], s=9, cmap="viridis")
axes[1, 1].set(title="learned CCA (test data)", xlabel="variate of view 1", ylabel="variate of view 2")
axes[0, 2].bar(range(40), units.tolist(), color="0.6")
axes[0, 2].set(title="units of 40 variables, of which 6 matter", xlabel="variable", ylabel="unit")
axes[1, 2].bar(range(40), weights.tolist(), color=["#1f5a99"] * 6 + ["0.6"] * 34)
axes[1, 2].set(title="learned weights (blue: they matter)", xlabel="variable", ylabel="weight")
for place in axes.flat:
    place.spines[["top", "right"]].set_visible(False)
figure.savefig(options.output / "pca_lda_cca.png", dpi=120)
