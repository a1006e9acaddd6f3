"""Kalman filtering with a flat prior of some states, exactly and not by a large variance.

Write the first state as h[0] = h' + Z δ, where h' has a proper prior, Z picks the diffuse states, and δ has
a flat one. Given δ all distributions are proper, and linear in δ: means are m + M δ, innovations v + V δ, and
their covariances S do not depend on δ. So one filter carries the columns [m M], and collects the information
about δ in a matrix G (de Jong):

    G = Σ [v V]ᵀ S⁻¹ [v V],      δ | y ~ N(-G_δδ⁻¹ g_δ, G_δδ⁻¹)
    -log p(y) = 1/2 Σ log det S + 1/2 (g - g_δᵀ G_δδ⁻¹ g_δ) + 1/2 log det G_δδ + count/2 log(2π)

The value is that of Durbin and Koopman: the limit of the likelihood under N(0, κ) on δ, as κ grows, times
κ^(d/2).

A proper prior on top of a flat one changes nothing. So the diffuse states also get a variance of the order
of the data: no innovation is then without variance, whatever the noise, and nothing large cancels in
g - g_δᵀ G_δδ⁻¹ g_δ. Nor does its mean change anything: that of a level is the mean of the data, so that no
digits are lost where the data vary little around a large number.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lapgrad import _errors, _exceptions
from lapgrad.linalg.cho_solve import cho_solve
from lapgrad.models._products import multiply
from lapgrad.models.components.base import Block
from lapgrad.models.criteria.kalman_filter import Innovation, get_at_time, observe
from lapgrad.ops.potrf import potrf
from lapgrad.ops.sumlogdiag import sumlogdiag

Operands = tuple[Tensor, ...]

_IDENTIFIED = 1e-10
"""δ counts as determined if the smallest eigenvalue of the scaled G_δδ is at least this (float64)."""


_CLEARLY_SEEN = 1e-6
"""Singular values above this part of the largest are no rounding errors."""


class DiffuseStates(NamedTuple):
    """The states with a flat prior.

    Attributes:
        positions: Which states.
        scales: The standard deviation of the proper part of the prior of each, and the unit of its δ.
        means: The mean of the proper part of the prior of each.
    """

    positions: list[int]
    scales: list[float]
    means: list[float]

    def make_directions(self, m: Tensor) -> Tensor:
        """Return Z (n, d) in the dtype and on the device of m (..., n)."""
        Z = m.new_zeros(m.shape[-1], len(self.positions))
        if self.positions:
            Z[self.positions, range(len(self.positions))] = m.new_tensor(self.scales)
        return Z

    def make_prior(self, m: Tensor, P: Tensor) -> tuple[Tensor, Tensor]:
        """Return the proper part of the prior, with ``means`` and variances scales² in diffuse states."""
        if not self.positions:
            return m, P
        proper, variances = self._mark_proper(P)
        return self.make_mean(m), proper[:, None] * proper * P + torch.diag(variances)

    def make_mean(self, m: Tensor) -> Tensor:
        """Return m (..., n) with ``means`` in diffuse states."""
        proper, means = torch.ones_like(m), torch.zeros_like(m)
        proper[..., self.positions] = 0.0
        means[..., self.positions] = m.new_tensor(self.means)
        return torch.addcmul(means, proper, m)

    def make_masks(self, P: Tensor) -> tuple[Tensor, Tensor]:
        """Return M and V (n, n): the proper part of a prior with covariance P is M * P + V."""
        proper, variances = self._mark_proper(P)
        return proper[:, None] * proper, torch.diag(variances)

    def _mark_proper(self, P: Tensor) -> tuple[Tensor, Tensor]:
        """Return (n,), 1 for states with a proper prior and 0 for others, and the variances of the others."""
        proper = P.new_ones(P.shape[-1])
        variances = torch.zeros_like(proper)
        if self.positions:
            proper[self.positions] = 0.0
            variances[self.positions] = P.new_tensor(self.scales).square()
        return proper, variances

    def compute_log_unit(self) -> float:
        """Return the logarithm of the volume of a unit of δ."""
        return sum(map(math.log, self.scales))


def choose_prior(block: Block, positions: list[int], y: Tensor, variance: float) -> DiffuseStates:
    """Return the diffuse states with the proper part of their prior.

    Args:
        block: The matrices of the model.
        positions: Which states are diffuse.
        y: (N, T, p), the data.
        variance: Their variance.
    """
    B = block.B.detach().reshape(-1, *block.B.shape[-2:]).cpu().numpy()
    largest = np.abs(B).max((0, 1)).tolist()
    seen = [largest[i] for i in positions]
    means = [0.0] * len(positions)
    level = _find_level(block.A, B, positions)
    if level is not None:
        means[level] = float(y.nanmean())
    return DiffuseStates(positions, [math.sqrt(variance) / (b if b > 0 else 1.0) for b in seen], means)


def _find_level(A: Tensor, B: npt.NDArray[Any], positions: list[int]) -> int | None:
    """Return the place in ``positions`` of a state to which adding a number adds it to all observations."""
    if B.shape[1] > 1:
        return None
    n = A.shape[-1]
    transitions = A.detach().reshape(-1, n, n).cpu().numpy()
    identity = np.eye(n)
    for place, i in enumerate(positions):
        if (B[:, 0, i] == 1.0).all() and (transitions[:, :, i] == identity[i]).all():
            return place
    return None


def sees_all(block: Block, y: Tensor, positions: list[int]) -> bool:
    """Return whether the first observations of one series surely determine the diffuse states.

    It takes less time than a filter, and answers for one series of numbers at regular times only. False: they
    do not, or only a filter could tell. B Aᵗ maps the diffuse states to the observation after t steps.
    """
    d = len(positions)
    is_plain = block.A.shape[:-2] == (1,) and block.B.shape[:-1] == (1, 1)
    if not d or y.is_cuda or y.shape[0] != 1 or y.shape[-1] != 1 or not is_plain:
        return False
    seen = (~np.isnan(y[0, : 4 * d + 8, 0].numpy())).tolist()
    A, row = block.A[0].double().numpy(), block.B[0, 0].double().numpy()
    rows = []
    for is_seen in seen:
        if is_seen:
            rows.append(row[positions])
            if d == 1 and math.isfinite(row[positions[0]]) and row[positions[0]] != 0.0:
                return True
        row = row @ A
    if len(rows) < d:
        return False
    sizes = np.linalg.svd(np.stack(rows), compute_uv=False)
    return bool(np.isfinite(sizes).all() and sizes[-1] > _CLEARLY_SEEN * sizes[0])


class FilterStep(NamedTuple):
    """One time step: columns [m M] (N, n, 1 + d) and covariances, predicted and filtered, and G so far."""

    mean: Tensor
    covariance: Tensor
    seen: Innovation
    filtered_mean: Tensor
    filtered_covariance: Tensor
    information: Tensor


class FilterRun(NamedTuple):
    """The results of the filter over some steps.

    Attributes:
        steps: The results of each step.
        mean: (N, n, 1 + d), columns [m M] predicted for the time after the last step.
        covariance: (N, n, n), the covariance predicted for that time.
        half_logdet: (N,), Σ log det L.
        observed: (N,), how many observations are not missing.
        log_unit: Logarithm of the volume of a unit of δ.
    """

    steps: list[FilterStep]
    mean: Tensor
    covariance: Tensor
    half_logdet: Tensor
    observed: Tensor
    log_unit: float

    @property
    def information(self) -> Tensor:
        """G of all steps, (N, 1 + d, 1 + d)."""
        return self.steps[-1].information


def run_filter(who: str, batch: torch.Size, model: Operands, diffuse: DiffuseStates, steps: int) -> FilterRun:
    """Run the filter over the first ``steps`` times, with one column for each diffuse state."""
    y, A, _, Q, _, m, P, c = model
    N = y.shape[0]
    n, d = A.shape[-1], len(diffuse.positions)
    m, P = diffuse.make_prior(m, P)
    Z = diffuse.make_directions(m)
    mean = torch.cat((m[..., None].expand(N, n, 1), Z.expand(N, n, d)), -1)
    covariance = P.expand(N, n, n)
    information = y.new_zeros(N, 1 + d, 1 + d)
    half_logdet, count = y.new_zeros(N), y.new_zeros(N)
    found: list[FilterStep] = []
    for t in range(steps):
        filtered, filtered_covariance, seen = observe(who, batch, model, t, mean, covariance)
        information = information + multiply(seen.v.mT, seen.u)
        half_logdet = half_logdet + sumlogdiag(seen.L)
        count = count + (~y[:, t].isnan()).sum(-1).to(y.dtype)
        found.append(FilterStep(mean, covariance, seen, filtered, filtered_covariance, information))
        mean = multiply(get_at_time(A, t), filtered) + torch.nn.functional.pad(
            get_at_time(c, t)[..., None], (0, d)
        )
        covariance = multiply(get_at_time(A, t), filtered_covariance, get_at_time(A, t).mT) + get_at_time(
            Q, t
        )
        covariance = 0.5 * (covariance + covariance.mT)
    return FilterRun(found, mean, covariance, half_logdet, count, diffuse.compute_log_unit())


def compute_nll(walked: FilterRun) -> Tensor:
    """Return -log p(y) of the steps of a run, (N,)."""
    G = walked.information
    constant = 0.5 * math.log(2 * math.pi) * walked.observed - walked.log_unit
    if G.shape[-1] == 1:
        return 0.5 * G[:, 0, 0] + walked.half_logdet + constant
    L = potrf(G[:, 1:, 1:])
    explained = (G[:, 1:, :1] * cho_solve(L, G[:, 1:, :1])).sum((-2, -1))
    return 0.5 * (G[:, 0, 0] - explained) + walked.half_logdet + sumlogdiag(L) + constant


def integrate_out_diffuse(mean: Tensor, covariance: Tensor, information: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and covariance with δ integrated out, from [m M] (..., n, 1 + d), P (..., n, n) and G."""
    if mean.shape[-1] == 1:
        return mean[..., 0], covariance
    L = potrf(information[..., 1:, 1:])
    M = mean[..., 1:]
    best = mean[..., :1] - multiply(M, cho_solve(L, information[..., 1:, :1]))
    spread = multiply(M, cho_solve(L, M.mT))
    return best[..., 0], covariance + 0.5 * (spread + spread.mT)


@torch.no_grad()
def count_diffuse_steps(who: str, batch: torch.Size, model: Operands, diffuse: DiffuseStates) -> int:
    """Return the number of steps after which the observations determine all diffuse states of all series.

    Raises:
        DomainError: All observations together do not determine them.
    """
    if not diffuse.positions:
        return 0
    times = model[0].shape[1]
    double = tuple(operand.double() for operand in model)
    open_series = torch.ones(model[0].shape[0], dtype=torch.bool, device=model[0].device)
    # As many steps as diffuse states are usually enough. If not, the number of steps is doubled.
    reach = min(times, len(diffuse.positions))
    while True:
        walked = run_filter(who, batch, double, diffuse, reach)
        for t, step in enumerate(walked.steps):
            G = step.information[:, 1:, 1:]
            scale = G.diagonal(dim1=-2, dim2=-1).clamp_min(torch.finfo(torch.float64).tiny).rsqrt()
            smallest = torch.linalg.eigvalsh(scale[:, :, None] * G * scale[:, None, :])[:, 0]
            open_series = smallest < _IDENTIFIED
            if not bool(open_series.any()):
                return t + 1
        if reach == times:
            break
        reach = min(times, 2 * reach)
    first = int(open_series.nonzero()[0, 0]) if times else 0
    item = _errors.batch_index(first, batch)
    raise _exceptions.DomainError(
        f"{who}: the observations of series {first} do not determine its {len(diffuse.positions)} diffuse "
        f"states: they are too few, or two components are alike. Use a shorter model, or diffuse_variance "
        f"for a prior that is wide and proper.",
        item,
    )
