"""Bayesian optimisation that learns from earlier problems: one network, Bayesian regressions on top."""

# %% [markdown]
# # A network with Bayesian linear regressions on top
#
# We look for the minimum of an expensive function, a *target*. Similar functions have been evaluated before:
# the *sources*, as when hyper-parameters are tuned for one data set after the other. `MultiTaskBLR` learns
# one network from all of them, through the sum of the marginal likelihoods of one Bayesian linear regression
# per task (Perrone et al., 2017). On its features a handful of evaluations says a lot about the target, and
# costs do not grow with their cube.

# %%
import argparse
import math
from collections.abc import Callable
from pathlib import Path

import torch
from matplotlib import pyplot as plt
from torch import Tensor, nn

from lapgrad.models import MultiTaskBLR

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--quick", action="store_true", help="fewer tasks, fewer steps: seconds")
parser.add_argument("--output", type=Path, default=Path(), help="folder for the figures [.]")
options = parser.parse_args()
options.output.mkdir(parents=True, exist_ok=True)
sources, repetitions, evaluations, steps = (6, 5, 10, 80) if options.quick else (12, 8, 15, 300)

# %% [markdown]
# ## The family of functions
#
# A valley across the unit square whose place and slope differ from task to task, with ripples.

# %%
Objective = Callable[[Tensor], Tensor]


def objective(seed: int) -> Objective:
    generator = torch.Generator().manual_seed(seed)
    bend, place, floor = torch.rand(3, dtype=torch.float64, generator=generator).tolist()
    angle, size, offset = torch.rand(3, dtype=torch.float64, generator=generator).tolist()

    def f(x: Tensor) -> Tensor:
        u, v = x.unbind(-1)
        valley = (v - 0.25 - 0.5 * place - 0.3 * (bend - 0.5) * torch.sin(3 * u)) ** 2
        slope = (u - 0.15 - 0.7 * floor) ** 2
        ripples = 0.05 * torch.cos(9 * u + 6 * angle) * torch.cos(7 * v)
        return (1 + size) * (4 * valley + slope + ripples) + offset

    return f


def points(count: int, seed: int) -> Tensor:
    return torch.rand(count, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def observed(f: Objective, x: Tensor, seed: int) -> Tensor:
    return f(x) + 0.01 * torch.randn(
        len(x), dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )


# %% [markdown]
# ## The features, learned from the sources
#
# Tasks may have different numbers of evaluations. The target is there from the start, without any.


# %%
def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 12), nn.Tanh()
    )


data = []
for task in range(sources):
    x = points(30 + 5 * task, seed=task)
    data.append((x, observed(objective(task), x, seed=task)))
nothing = (torch.empty(0, 2, dtype=torch.float64), torch.empty(0, dtype=torch.float64))
shared = MultiTaskBLR([*data, nothing], network())
result = shared.fit(steps=steps)
print(
    f"{sources} sources, {len(shared.y)} evaluations: "
    f"loss {result.history[0]:.0f} -> {result.loss:.0f}, {result.seconds:.1f} s"
)
# What the sources have in common is the best guess for the target.
with torch.no_grad():
    for raw in (shared.raw_noise_var, shared.raw_prior_var, shared.raw_bias_var):
        raw[-1] = raw[:-1].mean()

# %% [markdown]
# ## The loop
#
# *Expected improvement* weighs how much lower than the best so far a place may be. *Thompson sampling* draws
# one function from the posterior, and goes where that is smallest.


# %%
def expected_improvement(model: MultiTaskBLR, x: Tensor, best: float, seed: int) -> Tensor:
    mean, variance = model.predict(-1, x)
    deviation = variance.sqrt()
    z = (best - mean) / deviation
    normal = torch.distributions.Normal(0.0, 1.0)
    return deviation * (z * normal.cdf(z) + normal.log_prob(z).exp())


def thompson(model: MultiTaskBLR, x: Tensor, best: float, seed: int) -> Tensor:
    return -model.sample(-1, x, generator=seed)[0]


def optimised(
    model: MultiTaskBLR, f: Objective, acquisition, seed: int, refit: int, start: int = 1
) -> list[float]:
    """The smallest true value found after each evaluation; the first ``start`` places are random."""
    x = points(1, seed)
    found = []
    for count in range(evaluations):
        if count or not model.sizes[-1]:
            model.observe(-1, x, observed(f, x, seed + count))
        tried, values = model.data(-1)
        found.append(f(tried).min().item())
        if count + 1 < start:
            x = points(start, seed)[count + 1 : count + 2]
            continue
        if refit:
            model.fit(steps=refit)
        candidates = points(500, seed + 100 + count)
        with torch.no_grad():
            best = acquisition(model, candidates, values.min().item(), seed + count).argmax()
        x = candidates[best : best + 1]
    return found


def copy_of_shared() -> MultiTaskBLR:
    model = MultiTaskBLR([*data, nothing], network())
    model.load_state_dict(shared.state_dict())
    return model


def from_scratch(f: Objective, seed: int) -> list[float]:
    """The same with a network of its own, learned again after each evaluation, from five random places on."""
    first = points(1, seed)
    model = MultiTaskBLR([(first, observed(f, first, seed))], network())
    return optimised(model, f, expected_improvement, seed, refit=20, start=5)


def random_search(f: Objective, seed: int) -> list[float]:
    return torch.cummin(f(points(evaluations, seed)), 0).values.tolist()


methods = {
    "random search": lambda f, seed: random_search(f, seed),
    "EI, own network": from_scratch,
    "Thompson, shared network": lambda f, seed: optimised(copy_of_shared(), f, thompson, seed, refit=0),
    "EI, shared network": lambda f, seed: optimised(copy_of_shared(), f, expected_improvement, seed, refit=0),
}
fine = points(20000, seed=999)
regret = {name: [] for name in methods}
for repetition in range(repetitions):
    f = objective(1000 + repetition)
    for name, method in methods.items():
        values = torch.tensor(method(f, 50 * repetition))
        regret[name].append((values - f(fine).min()).clamp_min(1e-4))
print(f"\ndistance from the minimum after {evaluations} evaluations, median of {repetitions} targets")
medians = {name: torch.stack(values).median(0).values for name, values in regret.items()}
for name, median in medians.items():
    print(f"  {name:26s} {median[-1].item():.4f}")

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(11.5, 4.4), layout="constrained")
for (name, median), colour in zip(medians.items(), ("0.6", "#3c8d40", "#d1495b", "#1f5a99"), strict=True):
    left.semilogy(range(1, evaluations + 1), median, color=colour, label=name, linewidth=1.8)
left.set(
    xlabel="evaluations of the target",
    ylabel="distance from the minimum",
    title=f"median of {repetitions} targets",
)
left.legend(frameon=False)

model, f = copy_of_shared(), objective(1000)
optimised(model, f, expected_improvement, 0, refit=0)
side = torch.linspace(0, 1, 60, dtype=torch.float64)
grid = torch.cartesian_prod(side, side)
with torch.no_grad():
    mean = model.predict(-1, grid).mean
levels = torch.linspace(math.sqrt(f(grid).min() - 0.01), math.sqrt(f(grid).max()), 14).square()
right.contour(side, side, f(grid).reshape(60, 60).mT, levels=levels, colors="0.6", linewidths=0.8)
right.contourf(side, side, mean.reshape(60, 60).mT, levels=levels, cmap="Blues", extend="both", alpha=0.8)
tried, _ = model.data(-1)
order = right.scatter(*tried.T, c=range(1, len(tried) + 1), cmap="autumn", edgecolor="k", s=32, zorder=3)
figure.colorbar(order, ax=right, label="number of the evaluation")
right.set(title="a target (lines), its model (shades), and evaluations", xlabel="u", ylabel="v")
figure.savefig(options.output / "network_plus_blr.png", dpi=120)
