"""Deep Gaussian processes: functions of functions, for steps that one kernel cannot make, and for images."""

# %% [markdown]
# # Deep Gaussian processes
#
# A Gaussian process with a stationary kernel is as smooth in one place as in any other. Layers of them,
# $f_L(\ldots f_1(x))$, are not: inner layers stretch the input where much happens, and compress it where
# little does. They are learned by samples that go through the layers, and minibatches of the data:
# *doubly stochastic* variational inference (Salimbeni and Deisenroth 2017).

# %%
import argparse
import math
from pathlib import Path

import torch
from matplotlib import pyplot as plt

from lapgrad.models import DeepGP, DeepGPRegression, SparseGPRegression
from lapgrad.models.kernels import RBF
from lapgrad_bench.experiments import mnist

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--quick", action="store_true", help="few data and steps: seconds")
parser.add_argument("--data-dir", type=Path, help="folder with the images of MNIST [made-up images]")
parser.add_argument("--output", type=Path, default=Path(), help="folder for the figures [.]")
options = parser.parse_args()
options.output.mkdir(parents=True, exist_ok=True)

# %% [markdown]
# ## A step
#
# The sparse Gaussian process has to choose: a short lengthscale follows the steps and wiggles between them, a
# long one cuts the corners. The deep one does not have to choose. Both have the same number of inducing
# inputs in each layer.

# %%
generator = torch.Generator().manual_seed(0)
x = torch.linspace(-2.0, 2.0, 60 if options.quick else 150, dtype=torch.float64)
truth = torch.sign(x) + (x > 1.0) - 1.0 * (x < -1.2)
y = truth + 0.05 * torch.randn(len(x), dtype=torch.float64, generator=generator)

kernel = RBF(0.2)  # from a longer lengthscale it finds a smooth curve, and takes the steps for noise
sparse = SparseGPRegression(x, y, kernel, inducing=20, noise_var=0.01, normalise=True, generator=0)
sparse.fit(steps=60 if options.quick else 300)
deep = DeepGPRegression(x, y, inducing=20, noise_var=0.01, generator=0)
steps, lr = (300, 0.03) if options.quick else (1000, 0.02)
result = deep.fit(steps=steps, lr=lr, generator=0)

test = torch.linspace(-2.0, 2.0, 401, dtype=torch.float64)
expected = torch.sign(test) + (test > 1.0) - 1.0 * (test < -1.2)
print(f"{len(x)} observations, deep: {result.steps} steps, {result.seconds:.1f} s\n")
print("         RMSE   mean log density   bound of -log p(y)")
for name, model in (("sparse", sparse), ("deep", deep)):
    error = (model.predict(test).mean - expected).square().mean().sqrt().item()
    density = model.log_prob(test, expected).mean().item()
    bound = model.loss().item() if model is sparse else deep.loss(samples=50, generator=0).item()
    print(f"{name:7}{error:7.3f}{density:19.3f}{bound:21.1f}")

figure, axes = plt.subplots(1, 3, figsize=(15, 4.2), layout="constrained")
for place, model, title in ((axes[0], sparse, "sparse Gaussian process"), (axes[1], deep, "two layers")):
    model.plot(place)
    place.set(title=title, xlabel="x", ylabel="y")

# %% [markdown]
# ## What the inner layer does
#
# Its functions depart from the identity. Where y steps, the inner layer is steep: there the last layer, which
# has one lengthscale, sees inputs that are far apart. Each grey line is a draw of the whole function.

# %%
inner = deep.layers[0]
scaled = (test[:, None] - deep.x_shift) / deep.x_scale
with torch.no_grad():
    mean, variance = inner(scaled)
draws = deep.sample(test, 5, generator=0)
axes[2].plot(test, draws.T, color="0.75", linewidth=0.8, label=["draws of the function", *[None] * 4])
axes[2].plot(test, mean[:, 0], color="#d1495b", label="inner layer: mean")
axes[2].fill_between(
    test,
    mean[:, 0] - 1.96 * variance[:, 0].sqrt(),
    mean[:, 0] + 1.96 * variance[:, 0].sqrt(),
    color="#d1495b",
    alpha=0.18,
    linewidth=0,
    label="inner layer: 95% band",
)
axes[2].set(title="inner layer, and draws of the function", xlabel="x", ylabel="value of the layer, y")
axes[2].legend(frameon=False)
figure.savefig(options.output / "deep_gp.png", dpi=120)

# %% [markdown]
# ## Images, without inputs
#
# Without inputs, latent variables take their place, and a recognition network says where they are: `DeepGP`.
# Images go to a few latent variables and back, and new ones come from noise. (`lapgrad reproduce table2`
# learns the deep Gaussian processes of the paper from all of MNIST.)


# %%
def made_up(count: int, side: int) -> torch.Tensor:
    """Images of rings, (count, side * side): two numbers for the place, one for the size."""
    center = 0.5 + 0.25 * (torch.rand(count, 2, 1, 1, dtype=torch.float64, generator=generator) - 0.5)
    radius = 0.15 + 0.2 * torch.rand(count, 1, 1, dtype=torch.float64, generator=generator)
    grid = torch.linspace(0.0, 1.0, side, dtype=torch.float64)
    distance = ((grid[:, None] - center[:, 0]) ** 2 + (grid - center[:, 1]) ** 2).sqrt()
    return torch.exp(-0.5 * ((distance - radius) / 0.06) ** 2).flatten(1)


if options.data_dir is None:
    side = 8 if options.quick else 16
    images = made_up(100 if options.quick else 1000, side)
else:
    side = 28
    pixels = mnist.load_images("train", options.data_dir)[: 100 if options.quick else 2000]
    images = pixels.to(torch.float64) / 255.0

model = DeepGP(images, [3], inducing=20 if options.quick else 60, hidden=[50], generator=0)
result = model.fit(images, steps=100 if options.quick else 400, batch=200, generator=0)
print(f"\n{len(images)} images of {side} x {side}: {result.steps} steps, {result.seconds:.1f} s")
found = model.reconstruct(images)
explained = 1.0 - (found - images).square().sum() / (images - images.mean(0)).square().sum()
print(f"three latent variables explain {100 * explained.item():.0f} % of the variance of the pixels")

rows = {"images": images[:12], "reconstructed": found[:12], "from noise": model.sample(12, generator=0)}
figure, axes = plt.subplots(len(rows), 1, figsize=(10, 2.9), layout="constrained")
for place, (title, shown) in zip(axes, rows.items(), strict=True):
    tiles = torch.nn.functional.pad(shown.view(-1, side, side), (1, 1, 1, 1), value=0.2)
    place.imshow(torch.cat(list(tiles), 1).clamp(0.0, 1.0).numpy(), cmap="gray_r", vmin=0.0, vmax=1.0)
    place.set_axis_off()
    place.set_title(title, fontsize=9, loc="left")
figure.savefig(options.output / "deep_gp_images.png", dpi=120)

# %% [markdown]
# ## Files
#
# Data, parameters and the description of the kernels go into one file, which holds no code. Predictions take
# the same random numbers in every call, unless another `generator` is passed: they are the same, too.

# %%
deep.save(options.output / "deep_gp.pt")
loaded = DeepGPRegression.load(options.output / "deep_gp.pt")
same = torch.equal(loaded.predict(test).mean, deep.predict(test).mean)
(options.output / "deep_gp.pt").unlink()
print(f"\nsaved, loaded, and predicting the same: {same}")
print(f"standard deviation of the noise: {math.sqrt(deep.noise_var.item()) * deep.y_scale.item():.3f}")
