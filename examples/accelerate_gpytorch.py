"""Existing code gets faster by one line: lapgrad.accelerate()

A Gaussian process written with torch.distributions, and the same with GPyTorch where that is installed,
before and after `lapgrad.accelerate()`. Nothing in the models knows of lapgrad. Times of a training step, in
turns, and a plot of how many times faster it gets.

    lapgrad demo accelerate
    python examples/accelerate_gpytorch.py --quick --output figures/
"""

# %% [markdown]
# The program: negative log likelihood of a Gaussian process, its gradient, one step of Adam. It calls
# `torch.linalg` through `torch.distributions.MultivariateNormal`. With leading dimensions it is a batch of
# Gaussian processes.

# %%
import argparse
import importlib.util
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.distributions import MultivariateNormal

import lapgrad


def make_step(*shape: int) -> Callable[[], float]:
    """A training step of one Gaussian process (n,), or of a batch of them (items, n)."""
    torch.manual_seed(0)
    x = torch.rand(*shape, dtype=torch.float64).sort(-1).values
    y = torch.sin(6 * x) + 0.1 * torch.randn_like(x)
    logarithms = torch.zeros(3, *shape[:-1], 1, 1, dtype=torch.float64).requires_grad_()
    optimiser = torch.optim.Adam([logarithms], lr=0.05)
    squares = (x[..., :, None] - x[..., None, :]).square()
    identity = torch.eye(shape[-1], dtype=torch.float64)

    def step() -> float:
        optimiser.zero_grad()
        variance, lengthscale, noise = logarithms.exp()
        K = variance * torch.exp(-2.0 * squares / lengthscale**2) + 0.1 * noise * identity
        loss = -MultivariateNormal(torch.zeros_like(y), K, validate_args=False).log_prob(y).sum()
        loss.backward()
        optimiser.step()
        return float(loss.detach())

    return step


# %% [markdown]
# The same as users of GPyTorch write it.


# %%
def make_gpytorch_step(*shape: int) -> Callable[[], float]:
    """A training step of GPyTorch's exact Gaussian process, with Cholesky factorisations."""
    import gpytorch

    torch.manual_seed(0)
    x = torch.rand(*shape, 1, dtype=torch.float64)
    y = torch.sin(6 * x[..., 0]) + 0.1 * torch.randn(shape, dtype=torch.float64)
    batch = torch.Size(shape[:-1])

    class Model(gpytorch.models.ExactGP):
        def __init__(self, likelihood: gpytorch.likelihoods.Likelihood) -> None:
            super().__init__(x, y, likelihood)
            self.mean = gpytorch.means.ConstantMean(batch_shape=batch)
            rbf = gpytorch.kernels.RBFKernel(batch_shape=batch)
            self.kernel = gpytorch.kernels.ScaleKernel(rbf, batch_shape=batch)

        def forward(self, x: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    model = Model(gpytorch.likelihoods.GaussianLikelihood(batch_shape=batch)).double().train()
    criterion = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.05)

    def step() -> float:
        optimiser.zero_grad()
        with gpytorch.settings.fast_computations(False, False, False):
            loss = -criterion(model(x), y).sum()
        loss.backward()
        optimiser.step()
        return float(loss.detach())

    return step


# %% [markdown]
# Before and after, in turns: a step without lapgrad, a step with it. `with lapgrad.accelerate():` holds in
# the block; `lapgrad.accelerate()` at the top of a program would hold for all of it.


# %%
def compare(
    make: Callable[..., Callable[[], float]], shape: tuple[int, ...], rounds: int
) -> tuple[float, float]:
    """Median seconds of a step without and with lapgrad; both see the same losses."""
    plain, accelerated = make(*shape), make(*shape)
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(rounds + 1):
        start = time.perf_counter()
        loss = plain()
        middle = time.perf_counter()
        with lapgrad.accelerate():
            same = accelerated()
        if turn:  # the first round warms up
            times[0].append(middle - start)
            times[1].append(time.perf_counter() - middle)
        # Rounding errors grow from step to step: the noise is small, and Adam takes steps of full length.
        assert abs(loss - same) <= 1e-4 * abs(loss) + 1e-4
    return statistics.median(times[0]), statistics.median(times[1])


# %%
def main() -> None:
    parser = argparse.ArgumentParser(description="A training step before and after lapgrad.accelerate().")
    parser.add_argument("--quick", action="store_true", help="seconds, with smaller models")
    parser.add_argument("--output", type=Path, metavar="DIR", help="where to leave the figure")
    arguments = parser.parse_args()

    programs: dict[str, Callable[..., Callable[[], float]]] = {"torch.distributions": make_step}
    if importlib.util.find_spec("gpytorch") is not None:
        programs["GPyTorch"] = make_gpytorch_step
    shapes = [(500,), (200, 20)]
    if not arguments.quick:
        shapes += [(250,), (1000,), (2000,), (20, 50)]
    figures = {}
    print(f"{'program':<22}{'data':<18}{'before, ms':>12}{'after, ms':>12}{'faster':>9}")
    for program, make in programs.items():
        for shape in shapes:
            before, after = compare(make, shape, rounds=10)
            data = f"n = {shape[0]}" if len(shape) == 1 else f"{shape[0]} of n = {shape[1]}"
            figures[f"{program}, {data}"] = before / after
            print(f"{program:<22}{data:<18}{1e3 * before:>12.1f}{1e3 * after:>12.1f}{before / after:>8.2f}x")
    print()
    print(lapgrad.accelerate.stats())
    if arguments.output:
        draw(figures, arguments.output)


def draw(figures: dict[str, float], folder: Path) -> None:
    """A bar per program: how many times faster a step gets."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    figure, axes = pyplot.subplots(figsize=(7, 0.45 * len(figures) + 1.2))
    axes.barh(list(figures), list(figures.values()), color="#3366aa")
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.invert_yaxis()
    axes.set_xlabel("times faster with lapgrad.accelerate()")
    figure.tight_layout()
    figure.savefig(folder / "accelerate.png", dpi=120)


if __name__ == "__main__":
    main()
