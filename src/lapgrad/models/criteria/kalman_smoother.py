"""kalman_smoother: the states of a linear Gaussian state space model, given all observations."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lapgrad import _errors, _exceptions
from lapgrad.fused import _series
from lapgrad.linalg.cho_solve import cho_solve
from lapgrad.models._products import multiply
from lapgrad.models.criteria.kalman_filter import (
    Innovation,
    compute_log_density,
    get_at_time,
    observe,
    run_covariance_filter,
)
from lapgrad.ops.potrf import potrf

METHODS = ("auto", "rts", "bryson_frazier")


class Smoothed(NamedTuple):
    """Moments of the states h[t] of all times, given all observations.

    Attributes:
        mean: (*batch, T, n).
        covariance: (*batch, T, n, n).
        cross_covariance: (*batch, T - 1, n, n), Cov(h[t+1], h[t]): what expectation maximisation needs.
        log_likelihood: (*batch), log p(y).
    """

    mean: Tensor
    covariance: Tensor
    cross_covariance: Tensor
    log_likelihood: Tensor


def kalman_smoother(
    y: Tensor,
    A: Tensor,
    B: Tensor,
    Q: Tensor,
    R: Tensor,
    m: Tensor,
    P: Tensor,
    *,
    state_offset: Tensor | float | None = None,
    observation_offset: Tensor | float | None = None,
    method: str = "auto",
) -> Smoothed:
    """The Kalman smoother: moments of h[t] given y[0], ..., y[T-1].

    The model, the shapes and what NaN in y means are those of ``lapgrad.fused.kalman_nll``. Differentiable.

    Args:
        y: (*batch, T, p), the observations; NaN: missing.
        A: (*batch, T, n, n), or (n, n), the transition from t to t + 1.
        B: (*batch, T, p, n), or (p, n), the map from state to observation.
        Q: (*batch, T, n, n), or (n, n), covariance of the transition.
        R: (*batch, T, p, p), or (p, p), covariance of the observations.
        m: (*batch, n), mean of the first state.
        P: (*batch, n, n), covariance of the first state.
        state_offset: (*batch, T, n), or (n,), or a number: added to the next state.
        observation_offset: (*batch, T, p), or (p,), or a number: added to the observation.
        method: "rts" walks back over filtered moments (Rauch, Tung, Striebel) with an update that keeps
            covariances positive semi-definite; predicted covariances must be positive definite.
            "bryson_frazier" inverts covariances of observations only, and subtracts. It also works if states
            are known exactly, and is less accurate if the prior is wider by orders of magnitude than the
            posterior.
            "auto": "rts" if it is possible, else "bryson_frazier".

    Returns:
        Smoothed: moments of all steps.

    Raises:
        NotPositiveDefiniteError: The covariance of an observation given those before it, or ("rts") of a
            state given the observations before it, is not positive definite; names series and step.
        NonFiniteError: The same for NaN and infinity.
        DTypeError, DeviceError, ShapeError, OptionError: The arguments do not fit.

    Example:
        >>> import torch
        >>> from lapgrad.models import kalman_smoother
        >>> y, one = torch.tensor([[1.0], [torch.nan], [2.0]]), torch.ones(1, 1)
        >>> kalman_smoother(y, one, one, 0.5 * one, one, torch.zeros(1), one).mean[:, 0]
        tensor([0.8000, 1.1000, 1.4000])
    """
    who = "kalman_smoother"
    if method not in METHODS:
        raise _errors.unknown_option(who, "method", method, METHODS)
    model, batch = _series.prepare_operands(who, y, A, B, Q, R, m, P, state_offset, observation_offset)
    if method == "bryson_frazier":
        found = _smooth_bryson_frazier(who, batch, model)
    else:
        try:
            found = _smooth_rauch_tung_striebel(who, batch, model)
        except _StateKnownError as error:
            if method == "rts":
                raise error.explained from None
            found = _smooth_bryson_frazier(who, batch, model)
    return Smoothed(*[part.reshape((*batch, *part.shape[1:])) for part in found])


class _StateKnownError(Exception):
    """A predicted covariance is singular, so that "rts" is not possible."""

    def __init__(self, explained: _exceptions.LapgradError) -> None:
        super().__init__()
        self.explained = explained


def _smooth_rauch_tung_striebel(who: str, batch: torch.Size, model: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Smooth by Rauch, Tung and Striebel, with G = P+[t] Aᵀ P[t+1]⁻¹, P+ filtered and P predicted:

    m~[t] = m+[t] + G (m~[t+1] - m[t+1])
    P~[t] = (I - G A) P+[t] (I - G A)ᵀ + G (P~[t+1] + Q) Gᵀ
    """
    filtered, covariance, predicted, predicted_covariance, values = run_covariance_filter(who, batch, model)
    A, Q = model[1], model[3]
    T, n = filtered.shape[1:]
    if T == 0:
        return filtered, covariance, covariance, values.sum(-1)
    m, P = filtered[:, -1], covariance[:, -1]
    means, covariances, crosses = [m], [P], []
    identity = torch.eye(n, dtype=m.dtype, device=m.device)
    for t in reversed(range(T - 1)):
        At = get_at_time(A, t)
        G = cho_solve(
            _factorise_state(who, batch, t + 1, predicted_covariance[:, t + 1]),
            multiply(At, covariance[:, t]),
        ).mT
        crosses.append(multiply(P, G.mT))
        J = identity - multiply(G, At)
        m = filtered[:, t] + multiply(G, (m - predicted[:, t + 1])[..., None])[..., 0]
        P = multiply(J, covariance[:, t], J.mT) + multiply(G, P + get_at_time(Q, t), G.mT)
        P = 0.5 * (P + P.mT)
        means.append(m)
        covariances.append(P)
    return *_stack_reversed(means, covariances, crosses), values.sum(-1)


def _smooth_bryson_frazier(who: str, batch: torch.Size, model: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Smooth by Bryson and Frazier, with F = A (I - K B), and m, P predicted:

    r[t] = Bᵀ u + Fᵀ r[t+1], N[t] = Bᵀ S⁻¹ B + Fᵀ N[t+1] F
    m~ = m + P r, P~ = P - P N P, Cov(h[t+1], h[t]) = (I - P[t+1] N[t+1]) F P[t]
    """
    y = model[0]
    m, P = (X.expand(y.shape[0], *X.shape[1:]) for X in (model[5], model[6]))
    return smooth_back(model, *walk_forward(who, batch, model, m, P))


def walk_forward(
    who: str, batch: torch.Size, model: tuple[Tensor, ...], m: Tensor, P: Tensor
) -> tuple[list[tuple[Tensor, Tensor, Innovation]], Tensor]:
    """Run the filter; return predicted moments and innovations of all steps, and log likelihoods (N, T).

    m is (N, n), or has several columns (N, n, k); only the first depends on observations and offsets.
    """
    y, A, _, Q, _, _, _, c = model
    steps, values = [], []
    for t in range(y.shape[1]):
        filtered, P_filtered, seen = observe(who, batch, model, t, m, P)
        steps.append((m, P, seen))
        if m.dim() == 2:
            values.append(compute_log_density(y[:, t], seen))
        m = _predict_mean(get_at_time(A, t), filtered, get_at_time(c, t))
        P = multiply(get_at_time(A, t), P_filtered, get_at_time(A, t).mT) + get_at_time(Q, t)
        P = 0.5 * (P + P.mT)
    return steps, torch.stack(values, 1) if values else y.new_zeros(y.shape[0], 0)


def _predict_mean(A: Tensor, m: Tensor, c: Tensor) -> Tensor:
    if m.dim() == 2:
        return multiply(A, m[..., None])[..., 0] + c
    return multiply(A, m) + torch.nn.functional.pad(c[..., None], (0, m.shape[-1] - 1))


def smooth_back(
    model: tuple[Tensor, ...], steps: list[tuple[Tensor, Tensor, Innovation]], values: Tensor
) -> tuple[Tensor, ...]:
    """Run the backward pass of Bryson and Frazier over the results of ``walk_forward``."""
    y, A = model[:2]
    N_series, n = y.shape[0], A.shape[-1]
    if not steps:
        mean = y.new_empty(N_series, 0, n)
        return mean, y.new_empty(N_series, 0, n, n), y.new_empty(N_series, 0, n, n), values.sum(-1)
    r = torch.zeros_like(steps[0][0])
    N = torch.zeros_like(steps[0][1])
    identity = torch.eye(n, dtype=y.dtype, device=y.device)
    means, covariances, crosses = [], [], []
    for t in reversed(range(len(steps))):
        m, P, (B, L, _, u, K) = steps[t]
        F = multiply(get_at_time(A, t), identity - multiply(K, B))
        if t + 1 < len(steps):
            crosses.append(multiply(identity - multiply(steps[t + 1][1], N), F, P))
        one = r.dim() == 2
        u, r = (u[..., None], r[..., None]) if one else (u, r)
        r = multiply(B.mT, u) + multiply(F.mT, r)
        N = multiply(B.mT, cho_solve(L, B)) + multiply(F.mT, N, F)
        shift = multiply(P, r)
        r, shift = (r[..., 0], shift[..., 0]) if one else (r, shift)
        means.append(m + shift)
        covariance = P - multiply(P, N, P)
        covariances.append(0.5 * (covariance + covariance.mT))
    return *_stack_reversed(means, covariances, crosses), values.sum(-1)


def _stack_reversed(
    means: list[Tensor], covariances: list[Tensor], crosses: list[Tensor]
) -> tuple[Tensor, ...]:
    """Stack results that are in reverse order of time along a dimension of time."""
    cross = torch.stack(crosses[::-1], 1) if crosses else covariances[0][:, None][:, :0]
    return torch.stack(means[::-1], 1), torch.stack(covariances[::-1], 1), cross


def _factorise_state(who: str, batch: torch.Size, t: int, P: Tensor) -> Tensor:
    try:
        return potrf(P)
    except _exceptions.NotPositiveDefiniteError as error:
        item = (*_errors.batch_index(error.item[0] if error.item else 0, batch), t)
        raise _StateKnownError(
            _exceptions.NotPositiveDefiniteError(
                f'{who}: method="rts" needs predicted covariances of the state that are positive definite; '
                f'at step {t} it is not. Use method="bryson_frazier".',
                item,
                error.minor,
            )
        ) from None
