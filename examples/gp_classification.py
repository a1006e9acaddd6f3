"""Classes, counts and outliers: Gaussian processes with likelihoods other than the Gaussian."""

# %% [markdown]
# # Likelihoods beyond the Gaussian
#
# A Gaussian process is a distribution over functions $f$; a likelihood $p(y \mid f(x))$ says what is observed
# of them. For a class, a count or a number with outliers there is no closed posterior. `VariationalGP` and
# `GPClassification` learn a Gaussian one, by a bound of the log likelihood that is estimated from minibatches
# (Hensman, Matthews and Ghahramani 2015).

# %%
import argparse
from pathlib import Path

import numpy as np
import torch
from matplotlib import pyplot as plt

from lapgrad.models import GPClassification, VariationalGP, likelihoods

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--quick", action="store_true", help="few data and few steps: seconds")
parser.add_argument("--output", type=Path, default=Path(), help="folder for the figures [.]")
options = parser.parse_args()
options.output.mkdir(parents=True, exist_ok=True)
generator = torch.Generator().manual_seed(0)
n, steps = (150, 60) if options.quick else (600, 600)
figure, axes = plt.subplots(1, 3, figsize=(16, 4.5), layout="constrained")

# %% [markdown]
# ## Classes
#
# Three interleaved spirals. Labels may be text; `predict` returns labels and probabilities. Far from the data
# all classes are about as probable.

# %%
turn = torch.rand(n, dtype=torch.float64, generator=generator)
arm = torch.randint(3, (n,), generator=generator)
angle = 4.0 * turn + 2.0 * torch.pi / 3.0 * arm
noise = 0.04 * torch.randn(n, 2, dtype=torch.float64, generator=generator)
X = turn[:, None] * torch.stack((angle.cos(), angle.sin()), -1) + noise
labels = np.array(["blue", "orange", "green"])[arm.numpy()]
train = slice(0, 4 * n // 5)
classifier = GPClassification(X[train], labels[train], inducing=40, generator=0)
classifier.fit(steps=steps, batch=200, lr=0.03, generator=0)
X_test, labels_test = X[4 * n // 5 :], labels[4 * n // 5 :]
accuracy = (classifier.predict(X_test).labels == labels_test).mean()
likelihood = classifier.log_prob(X_test, labels_test).mean().item()
print(f"three spirals: {accuracy:.1%} of the test data right, log likelihood {likelihood:.2f} per datum")

side = torch.linspace(-1.3, 1.3, 60, dtype=torch.float64)
grid = torch.cartesian_prod(side, side)
colours = torch.tensor([plt.matplotlib.colors.to_rgb(f"tab:{name}") for name in classifier.classes]).double()
picture = (classifier.predict_proba(grid) @ colours).reshape(60, 60, 3).transpose(0, 1)
axes[0].imshow(picture.clamp(0, 1).numpy(), origin="lower", extent=(-1.3, 1.3, -1.3, 1.3), alpha=0.5)
for name in classifier.classes:
    axes[0].scatter(*X[train][labels[train] == name].T, s=6, color=f"tab:{name}", label=name)
axes[0].set(title="classes: mixed colours are uncertain", xlabel="x1", ylabel="x2")
axes[0].legend(loc="upper left")

# %% [markdown]
# ## Counts
#
# The logarithm of the rate is the function. The band has 95 % of the counts, if they were normal.

# %%
x = 6.0 * torch.rand(n, dtype=torch.float64, generator=generator)
counts = torch.poisson(torch.exp(1.0 + torch.sin(2.0 * x)), generator=generator)
model = VariationalGP(x, counts, likelihoods.Poisson(), inducing=20, generator=0)
model.fit(steps=steps, batch=200, lr=0.03, generator=0)
model.plot(axes[1])
axes[1].set(title="counts", xlabel="x", ylabel="count", ylim=(0, None))
rate = model.predict(x, noise=True).mean
error = ((rate - torch.exp(1.0 + torch.sin(2.0 * x))).abs() / rate).mean()
print(f"counts: the rate is off by {error.item():.1%} on average")

# %% [markdown]
# ## Outliers
#
# One observation in twelve is wrong. Student's distribution allows for it; the Gaussian model follows it,
# or takes everything for noise.

# %%
y = torch.sin(2.0 * x) + 0.1 * torch.randn(n, dtype=torch.float64, generator=generator)
y[::12] += 4.0 * torch.randn(len(y[::12]), dtype=torch.float64, generator=generator)
line = torch.linspace(0, 6, 200, dtype=torch.float64)
for name, kind in (("Student t", likelihoods.StudentT()), ("Gaussian", likelihoods.Gaussian())):
    model = VariationalGP(x, y, kind, inducing=20, generator=0)
    model.fit(steps=2 * steps, batch=200, lr=0.03, generator=0)
    mean = model.predict(line).mean
    error = (mean - torch.sin(2.0 * line)).square().mean().sqrt().item()
    axes[2].plot(line, mean, label=f"{name}, error {error:.2f}")
    print(f"outliers: error of f with the {name} likelihood {error:.3f}")
axes[2].scatter(x, y, s=5, color="grey", label="data")
axes[2].set(title="outliers", xlabel="x", ylabel="y", ylim=(-3, 3))
axes[2].legend()
figure.savefig(options.output / "gp_classification.png", dpi=120)
