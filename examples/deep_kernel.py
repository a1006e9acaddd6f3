"""Deep kernels: a network in front of a kernel, both learned by the marginal likelihood."""

# %% [markdown]
# # Deep kernels
#
# A stationary kernel believes that a function varies alike everywhere. A step is smooth at almost all places,
# and at one it is not: no lengthscale fits both. A network $g$ in front, $k(g(x), g(z))$, learns to stretch
# the inputs where the function moves.

# %%
import argparse
import gzip
import os
from itertools import pairwise
from pathlib import Path

import torch
from matplotlib import pyplot as plt
from torch import nn

from lapgrad.models import GPRegression
from lapgrad.models.kernels import RBF, Deep

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--quick", action="store_true", help="fewer steps: seconds")
parser.add_argument("--output", type=Path, default=Path(), help="folder for the figures [.]")
parser.add_argument(
    "--data-dir",
    type=Path,
    default=os.environ.get("LAPGRAD_DATA"),
    help="folder with kin8nm.csv.gz, for the second part [LAPGRAD_DATA]",
)
options = parser.parse_args()
options.output.mkdir(parents=True, exist_ok=True)


def network(*widths: int, seed: int) -> nn.Module:
    """Layers of these widths with tanh between them; the same weights for the same seed."""
    torch.manual_seed(seed)
    layers = [nn.Linear(*pair) for pair in pairwise(widths)]
    return nn.Sequential(layers[0], *(part for layer in layers[1:] for part in (nn.Tanh(), layer))).double()


# %% [markdown]
# ## A step
#
# 60 noisy observations. Both models have an RBF kernel, noise and a mean; one has a network, too.

# %%
source = torch.Generator().manual_seed(0)
x = torch.rand(60, generator=source, dtype=torch.float64) * 2 - 1
truth = lambda x: torch.where(x < 0, 0.0, 1.0).double() + 0.2 * torch.sin(3 * x)
y = truth(x) + 0.03 * torch.randn(60, generator=source, dtype=torch.float64)

plain = GPRegression(x, y, RBF(lengthscale=0.3), noise_var=0.01, normalise=False)
plain_result = plain.fit()
deep = GPRegression(x, y, Deep(RBF(), network(1, 50, 50, 1, seed=0)), noise_var=0.01, normalise=False)
deep_result = deep.fit("adam", steps=60 if options.quick else 600, lr=0.01)
x_new = torch.linspace(-1, 1, 400, dtype=torch.float64)
for name, model, result in (("RBF", plain, plain_result), ("deep RBF", deep, deep_result)):
    # The data do not say where the step is between the two observations next to it.
    known = x_new[(x_new < x[x < 0].max()) | (x_new > x[x > 0].min())]
    error = (model.predict(known).mean - truth(known)).square().mean().sqrt()
    print(
        f"{name:<9} -log p(y) {result.loss:7.1f}   RMSE {error.item():.3f}   "
        f"noise {model.noise_var.sqrt().item():.3f} (0.03 in truth)"
    )

# %%
figure, axes = plt.subplots(1, 3, figsize=(14, 4), layout="constrained")
for place, name, model in zip(axes, ("RBF", "deep RBF"), (plain, deep), strict=False):
    model.plot(place)
    place.plot(x_new, truth(x_new), color="0.3", linestyle=":", linewidth=1, label="truth")
    place.set(title=name, xlabel="x", ylabel="y", ylim=(-0.5, 1.5))
    place.legend(frameon=False, fontsize=8)
with torch.no_grad():
    axes[2].plot(x_new, deep.kernel.network(x_new[:, None]), color="#1f5a99")
axes[2].set(title="what the network makes of x", xlabel="x", ylabel="g(x)", xticks=(-1, 0, 1))
figure.savefig(options.output / "deep_kernel.png", dpi=120)

# %% [markdown]
# ## Eight joints of a robot arm
#
# kin8nm: how far the hand is from a point, from the angles of eight joints. Trained on some rows, tested on
# others. (Skipped without the data.) The weights of a network are not integrated out: the marginal likelihood
# does not keep a large one from learning the noise by heart, so the network is small and stops early.

# %%
file = None if options.data_dir is None else Path(options.data_dir) / "kin8nm.csv.gz"
if file is None or not file.exists():
    print("skipped: kin8nm.csv.gz (OpenML, data set 189) is not there; --data-dir names its folder")
else:
    with gzip.open(file, "rt") as lines:
        next(lines)
        table = torch.tensor([[float(v) for v in line.split(",")] for line in lines], dtype=torch.float64)
    table = table[torch.randperm(len(table), generator=torch.Generator().manual_seed(0))]
    n = 200 if options.quick else 1000
    X, target, X_test, target_test = table[:n, :8], table[:n, 8], table[n:, :8], table[n:, 8]
    candidates = {
        "RBF, one lengthscale per joint": (None, {}),
        "deep RBF": (
            Deep(RBF(lengthscale=3.0), network(8, 50, 8, seed=1)),
            {"optimizer": "adam", "steps": 20 if options.quick else 60, "lr": 0.02},
        ),
    }
    for name, (kernel, how) in candidates.items():
        model = GPRegression(X, target, kernel, normalise=True)
        result = model.fit(**(how or {"steps": 20 if options.quick else 100}))
        mean, _ = model.predict(X_test)
        density = model.log_prob(X_test, target_test).mean().item()
        error = (mean - target_test).square().mean().sqrt().item()
        print(
            f"{name:<32} n = {n}: RMSE {error:.4f}, log density {density:.3f}, {result.steps} steps, "
            f"{result.seconds:.1f} s"
        )
