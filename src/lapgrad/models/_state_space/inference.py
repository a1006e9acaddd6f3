"""States, forecasts and draws of a state space model, from a run of its filter with diffuse columns."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lapgrad.linalg.cho_solve import cho_solve
from lapgrad.models import _sampling
from lapgrad.models._products import multiply
from lapgrad.models._state_space import time_series as _time_series
from lapgrad.models._state_space.diffuse import FilterRun, Operands, compute_nll, integrate_out_diffuse
from lapgrad.models.criteria.kalman_filter import Filtered
from lapgrad.models.criteria.kalman_smoother import Smoothed, smooth_back
from lapgrad.ops.potrf import potrf
from lapgrad.ops.sumlogdiag import sumlogdiag
from lapgrad.ops.trsm import trsm


def filter_states(run: FilterRun, flat: Operands, start: int) -> Filtered:
    """Return moments of the states, given the observations so far: (N, T, ...).

    Args:
        run: The filter over all steps.
        flat: Its operands.
        start: How many steps determine the diffuse states; before, moments are NaN.
    """
    first = max(0, start - 1)
    found: list[tuple[Tensor, ...]] = []
    for t, step in enumerate(run.steps):
        if t < first:
            missing = (torch.full_like(x, torch.nan) for x in (step.mean[..., 0], step.covariance) * 2)
            found.append(tuple(missing))
            continue
        filtered = integrate_out_diffuse(step.filtered_mean, step.filtered_covariance, step.information)
        before = run.steps[t - 1].information if t else step.information.new_zeros(step.information.shape)
        predicted = (
            integrate_out_diffuse(step.mean, step.covariance, before)
            if t > first or not start
            else tuple(torch.full_like(x, torch.nan) for x in filtered)
        )
        found.append((*filtered, *predicted))
    parts = [torch.stack(part, 1) for part in zip(*found, strict=True)]
    values = _compute_log_likelihoods(flat, parts[2], parts[3])
    if start:
        values[:, :first] = torch.nan
    mean, covariance, predicted_mean, predicted_covariance = parts
    return Filtered(mean, covariance, predicted_mean, predicted_covariance, values)


def smooth_states(run: FilterRun, flat: Operands) -> Smoothed:
    """Return moments of the states, given all observations: (N, T, ...)."""
    steps = [(step.mean, step.covariance, step.seen) for step in run.steps]
    mean, covariance, cross, _ = smooth_back(flat, steps, flat[0].new_zeros(len(flat[0]), 0))
    G = run.information
    if mean.shape[-1] > 1:
        L, M = potrf(G[:, None, 1:, 1:]), mean[..., 1:]
        cross = cross + multiply(M[:, 1:], cho_solve(L, M[:, :-1].mT))
    mean, covariance = integrate_out_diffuse(mean, covariance, G[:, None])
    return Smoothed(mean, covariance, cross, compute_nll(run).neg())


def standardise_residuals(found: Filtered, flat: Operands) -> Tensor:
    """Return one-step prediction errors in units of their deviations, (N, T, p); NaN: there is none."""
    S, v, there, known = _predict_observations(flat, found.predicted_mean, found.predicted_covariance)
    z = trsm(potrf(S), v[..., None])[..., 0]
    return torch.where(there & known[..., None], z, torch.nan)


def forecast_observations(
    run: FilterRun, flat: Operands, lengths: Tensor, steps: int, *, noise: bool
) -> tuple[Tensor, Tensor]:
    """Return means (N, steps, p) and covariances (N, steps, p, p) of later observations, without offsets."""
    N, _, p = flat[0].shape
    if not steps:
        return flat[0].new_empty(N, 0, p), flat[0].new_empty(N, 0, p, p)
    first, n = int(lengths.min()), flat[1].shape[-1]
    after = _time_series.list_later_times(lengths, steps)
    predicted = [
        integrate_out_diffuse(step.mean, step.covariance, run.information) for step in run.steps[first:]
    ]
    m = torch.stack([mean for mean, _ in predicted], 1)
    P = torch.stack([covariance for _, covariance in predicted], 1)
    m = m.gather(1, (after - first)[..., None].expand(-1, -1, n))
    P = P.gather(1, (after - first)[..., None, None].expand(-1, -1, n, n))
    B, R = (_time_series.gather_times(X, after) for X in (flat[2], flat[4]))
    return multiply(B, m[..., None])[..., 0], multiply(B, P, B.mT) + (R if noise else 0.0)


def draw_observations(
    run: FilterRun,
    flat: Operands,
    lengths: Tensor,
    steps: int,
    count: int,
    source: torch.Generator | None,
    *,
    noise: bool,
) -> Tensor:
    """Return ``count`` paths of the signal or of observations after the end, (N, count, steps, p).

    Offsets of the observations are left out.
    """
    y, A, B, Q, R, _, _, c = flat
    N, _, p = y.shape
    after = _time_series.list_later_times(lengths, steps)
    drawn = y.new_empty(N, count, steps, p)

    def draw(mean: Tensor, covariance: Tensor) -> Tensor:
        """Return draws (N, count, k) for means (N, count, k) and covariances (N, k, k)."""
        normal = torch.randn(mean.shape, dtype=mean.dtype, device=mean.device, generator=source)
        return mean + multiply(normal, _sampling.compute_root(covariance).mT)

    if steps:
        states = [
            integrate_out_diffuse(
                run.steps[int(length)].mean[i], run.steps[int(length)].covariance[i], run.information[i]
            )
            for i, length in enumerate(lengths)
        ]
        h = draw(
            torch.stack([mean for mean, _ in states])[:, None].expand(N, count, -1),
            torch.stack([covariance for _, covariance in states]),
        )
    for k in range(steps):
        A_k, B_k, Q_k, R_k, c_k = (
            _time_series.gather_times(X, after[:, k : k + 1])[:, 0] for X in (A, B, Q, R, c)
        )
        signal = multiply(h, B_k.mT)
        drawn[:, :, k] = draw(signal, R_k) if noise else signal
        h = draw(multiply(h, A_k.mT) + c_k[:, None], Q_k)
    return drawn


def _predict_observations(
    flat: Operands, mean: Tensor, covariance: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return S, v, a mask of the observed entries, and a mask of the steps (N, T) with known moments."""
    y, _, B, _, R = flat[:5]
    there = ~y.isnan()
    seen = there.to(y.dtype)
    B = seen[..., None] * B
    S = multiply(B, covariance, B.mT) + seen[..., None] * seen[..., None, :] * R + torch.diag_embed(1 - seen)
    v = torch.where(there, y, 0.0) - multiply(B, mean[..., None])[..., 0]
    known = ~mean.isnan().any(-1)
    identity = torch.eye(S.shape[-1], dtype=S.dtype, device=S.device)
    return torch.where(known[..., None, None], S, identity), v, there, known


def _compute_log_likelihoods(flat: Operands, mean: Tensor, covariance: Tensor) -> Tensor:
    """Return log p(y[t] | y[0], ..., y[t-1]), (N, T), from predicted moments of the states."""
    S, v, there, known = _predict_observations(flat, mean, covariance)
    L = potrf(S)
    z = trsm(L, v[..., None])[..., 0]
    count = there.sum(-1).to(z.dtype)
    value = -0.5 * (z.square().sum(-1) + count * math.log(2 * math.pi)) - sumlogdiag(L)
    return torch.where(known, value, torch.nan)
