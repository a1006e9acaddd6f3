"""Least squares as a layer: rates of decay by variable projection, through the derivative of a solution."""

# %% [markdown]
# # Differentiating through least squares
#
# A signal is a sum of decays, $y(t) = \sum_j c_j e^{-r_j t}$. Given the rates $r$, the amplitudes $c$ are the
# solution of a linear least-squares problem. So there is no need to *search* for them: `lapgrad.linalg.lstsq`
# gives them, and gradients of the residual flow through the solution back to the rates. That is
# *variable projection* (Golub and Pereyra, 1973), here in three lines.

# %%
import argparse
from pathlib import Path

import torch
from matplotlib import pyplot as plt

import lapgrad

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--quick", action="store_true", help="fewer signals, fewer steps: seconds")
parser.add_argument("--output", type=Path, default=Path(), help="folder for the figures [.]")
options = parser.parse_args()
options.output.mkdir(parents=True, exist_ok=True)

# %% [markdown]
# ## Many signals with the same rates
#
# As in fluorescence or radioactive decay: each of many signals mixes the same three decays with amplitudes of
# its own.

# %%
generator = torch.Generator().manual_seed(0)
signals = 20 if options.quick else 200
t = torch.linspace(0.0, 4.0, 120, dtype=torch.float64)
true_rates = torch.tensor([0.4, 1.5, 6.0], dtype=torch.float64)
amplitudes = torch.rand(3, signals, dtype=torch.float64, generator=generator) + 0.2
clean = torch.exp(-t[:, None] * true_rates) @ amplitudes
y = clean + 0.02 * torch.randn(clean.shape, dtype=torch.float64, generator=generator)


def projected(log_rates: torch.Tensor) -> torch.Tensor:
    """What the best amplitudes leave over."""
    decays = torch.exp(-t[:, None] * log_rates.exp())
    c = lapgrad.linalg.lstsq(decays, y)
    return (y - decays @ c).square().mean()


def joint(log_rates: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """The same with the amplitudes as further unknowns."""
    return (y - torch.exp(-t[:, None] * log_rates.exp()) @ c).square().mean()


# %% [markdown]
# Both are minimised by L-BFGS from the same start: 3 unknowns on one side, 3 + 3 per signal on the other.

# %%
evaluations = 30 if options.quick else 60


def minimised(loss, unknowns: list[torch.Tensor]) -> list[float]:
    history: list[float] = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        value = loss(*unknowns)
        value.backward()
        history.append(value.item())
        return value

    optimizer = torch.optim.LBFGS(
        unknowns, max_iter=evaluations, max_eval=evaluations, line_search_fn="strong_wolfe"
    )
    optimizer.step(closure)
    return history


start = torch.log(torch.tensor([0.2, 1.0, 3.0], dtype=torch.float64))
rates = start.clone().requires_grad_()
by_projection = minimised(projected, [rates])
other_rates = start.clone().requires_grad_()
c = torch.ones(3, signals, dtype=torch.float64, requires_grad=True)
by_joint = minimised(joint, [other_rates, c])

print(f"truth                {true_rates.tolist()}")
print(f"variable projection  {[round(r, 3) for r in rates.exp().tolist()]}, {len(by_projection)} evaluations")
print(
    f"joint search         {[round(r, 3) for r in other_rates.exp().tolist()]}, {len(by_joint)} evaluations"
)

# %% [markdown]
# ## How sure are the rates?
#
# The Hessian of the projected problem, by second derivatives through the solution, is the curvature with the
# amplitudes optimised out: standard errors of the rates, with the uncertainty of all amplitudes in them.

# %%
left_over = projected(rates.detach())
degrees = y.numel() - 3 * signals - 3
noise_var = left_over * y.numel() / degrees
H = torch.autograd.functional.hessian(projected, rates.detach()) * y.numel() / (2 * noise_var)
errors = lapgrad.inverse(H).diagonal().sqrt()
for true, found, error in zip(true_rates, rates.exp().detach(), errors, strict=True):
    print(f"rate {true:.1f}: {found:.3f} ± {found * error:.3f}")

figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
for history, name, colour in (
    (by_projection, "variable projection", "#1f5a99"),
    (by_joint, "joint search", "#d1495b"),
):
    left.semilogy(history, color=colour, label=f"{name}")
left.axhline(0.02**2, color="0.5", linestyle=":", label="noise")
left.set(xlabel="evaluations", ylabel="mean square", title=f"{signals} signals, 3 shared rates")
left.legend(frameon=False)
decays = torch.exp(-t[:, None] * rates.exp().detach())
for signal, colour in zip(range(3), ("#1f5a99", "#d1495b", "#3c8d40"), strict=True):
    name = f"signal {signal + 1}"
    right.scatter(t, y[:, signal], s=6, color=colour, alpha=0.5, label=name)
    fitted = decays @ lapgrad.linalg.lstsq(decays, y[:, signal : signal + 1])
    right.plot(t, fitted, color=colour, label=f"{name}: fit")
right.set(xlabel="t", ylabel="y", title="three of the signals, and their fits")
right.legend(frameon=False)
figure.savefig(options.output / "least_squares.png", dpi=120)
