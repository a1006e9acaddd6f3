"""kalman_filter: the states of a linear Gaussian state space model, given the observations so far."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from lapgrad import _errors, _exceptions
from lapgrad.fused import _series
from lapgrad.linalg.cho_solve import cho_solve
from lapgrad.models._products import multiply
from lapgrad.ops.gelqf import gelqf
from lapgrad.ops.potrf import potrf
from lapgrad.ops.sumlogdiag import sumlogdiag
from lapgrad.ops.syrk import syrk
from lapgrad.ops.trsm import trsm

FORMS = ("covariance", "square_root")
_LOG_2_PI = math.log(2.0 * math.pi)


class Filtered(NamedTuple):
    """Moments of the states h[t] of all times.

    Attributes:
        mean: (*batch, T, n), given the observations up to and including t.
        covariance: (*batch, T, n, n), of the same.
        predicted_mean: (*batch, T, n), given the observations before t.
        predicted_covariance: (*batch, T, n, n), of the same.
        log_likelihood: (*batch, T), log p(y[t] | y[0], ..., y[t-1]); 0 where nothing is observed.
    """

    mean: Tensor
    covariance: Tensor
    predicted_mean: Tensor
    predicted_covariance: Tensor
    log_likelihood: Tensor


def kalman_filter(
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
    form: str = "covariance",
    factors: bool = False,
) -> Filtered:
    """The Kalman filter: moments of h[t] given y[0], ..., y[t], and given y[0], ..., y[t-1].

    The model, the shapes and what NaN in y means are those of ``lapgrad.fused.kalman_nll``, which gives the
    log likelihood, and its gradient, a hundred times faster. Here every step is made of differentiable
    operators, and results of all steps are returned.

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
        form: "covariance": with the update of Joseph, which keeps covariances positive semi-definite.
            "square_root": on triangular factors of all covariances, by LQ factorisations. It is as
            accurate with half the digits. Q, R and P must be positive definite, or ``factors`` be given.
        factors: Q, R and P are factors G of the covariances G Gᵀ.

    Returns:
        Filtered: moments and log likelihoods of all steps.

    Raises:
        NotPositiveDefiniteError: The covariance of an observation given those before it is not positive
            definite; names series and step. "square_root": or Q, R or P is not.
        NonFiniteError: The same for NaN and infinity.
        DTypeError, DeviceError, ShapeError, OptionError: The arguments do not fit.

    Example:
        >>> import torch
        >>> from lapgrad.models import kalman_filter
        >>> y, one = torch.tensor([[1.0], [torch.nan], [2.0]]), torch.ones(1, 1)
        >>> kalman_filter(y, one, one, 0.5 * one, one, torch.zeros(1), one).mean[:, 0]
        tensor([0.5000, 0.5000, 1.4000])
    """
    who = "kalman_filter"
    if form not in FORMS:
        raise _errors.unknown_option(who, "form", form, FORMS)
    model, batch = _series.prepare_operands(who, y, A, B, Q, R, m, P, state_offset, observation_offset)
    steps = run_covariance_filter if form == "covariance" else _run_square_root_filter
    found = steps(who, batch, _convert_covariances(model, form, factors))
    return Filtered(*[part.reshape((*batch, *part.shape[1:])) for part in found])


def _convert_covariances(model: tuple[Tensor, ...], form: str, factors: bool) -> tuple[Tensor, ...]:
    """Return the model with covariances, or with factors of them, as the form needs them."""
    y, A, B, Q, R, m, P, c = model
    if (form == "square_root") == factors:
        return model
    convert = syrk if factors else potrf
    Q, R, P = (convert(X) for X in (Q, R, P))
    return y, A, B, Q, R, m, P, c


class Innovation(NamedTuple):
    """An observation compared with its prediction; missing entries are masked (see ``observe``)."""

    B: Tensor
    L: Tensor
    v: Tensor
    u: Tensor
    K: Tensor


def run_covariance_filter(who: str, batch: torch.Size, model: tuple[Tensor, ...]) -> list[Tensor]:
    """Run the filter over series with one leading dimension, and return the parts of ``Filtered``."""
    y, *_, m, P, c = model
    N, T, _ = y.shape
    m, P = m.expand(N, *m.shape[1:]), P.expand(N, *P.shape[1:])
    steps: list[tuple[Tensor, ...]] = []
    for t in range(T):
        predicted = m, P
        m, P, seen = observe(who, batch, model, t, m, P)
        steps.append((m, P, *predicted, compute_log_density(y[:, t], seen)))
        A, Q = get_at_time(model[1], t), get_at_time(model[3], t)
        m, P = multiply(A, m[..., None])[..., 0] + get_at_time(c, t), _symmetrise(multiply(A, P, A.mT) + Q)
    return _stack_steps(steps, model)


def observe(
    who: str, batch: torch.Size, model: tuple[Tensor, ...], t: int, m: Tensor, P: Tensor
) -> tuple[Tensor, Tensor, Innovation]:
    """Return filtered moments, given predicted ones; m may have several columns (N, n, k), the first with y.

        v = y - B m, S = B P Bᵀ + R = L Lᵀ, K = P Bᵀ S⁻¹, u = S⁻¹ v
        m+ = m + K v, P+ = (I - K B) P (I - K B)ᵀ + K R Kᵀ

    Missing entries of y get zeros in B and v, and a row of the identity in R, so that they have no effect.
    """
    y, _, B, _, R = model[:5]
    there = ~y[:, t].isnan()
    seen = there.to(y.dtype)
    B = seen[..., None] * get_at_time(B, t)
    R = seen[..., None] * seen[..., None, :] * get_at_time(R, t) + torch.diag_embed(1 - seen)
    columns = m if m.dim() == 3 else m[..., None]
    value = torch.where(there, y[:, t], 0.0)[..., None]
    v = torch.nn.functional.pad(value, (0, columns.shape[-1] - 1)) - multiply(B, columns)
    BP = multiply(B, P)
    L = _factorise(who, batch, t, _symmetrise(multiply(BP, B.mT) + R))
    K = cho_solve(L, BP).mT
    u = cho_solve(L, v)
    J = torch.eye(P.shape[-1], dtype=P.dtype, device=P.device) - multiply(K, B)
    P = _symmetrise(multiply(J, P, J.mT) + multiply(K, R, K.mT))
    columns = columns + multiply(K, v)
    if m.dim() == 2:
        return columns[..., 0], P, Innovation(B, L, v[..., 0], u[..., 0], K)
    return columns, P, Innovation(B, L, v, u, K)


def compute_log_density(y: Tensor, seen: Innovation) -> Tensor:
    """Return log N(v | 0, S) of the entries that are not missing."""
    count = (~y.isnan()).sum(-1).to(y.dtype)
    return -0.5 * (seen.v * seen.u).sum(-1) - sumlogdiag(seen.L) - 0.5 * _LOG_2_PI * count


def get_at_time(X: Tensor, t: int) -> Tensor:
    """Return the entry (N, ...) of X (N, T, ...) at time t; T = 1: X does not vary with time."""
    return X[:, t if X.shape[1] > 1 else 0]


def _run_square_root_filter(who: str, batch: torch.Size, model: tuple[Tensor, ...]) -> list[Tensor]:
    """Run the filter on factors of the covariances: P = F Fᵀ, R = G Gᵀ, Q = H Hᵀ.

        [ G   B F ]   [ L    0 ]
        [ 0     F ] = [ K L  F+ ] · orthogonal,        [ A F+   H ] = [ F   0 ] · orthogonal

    The orthogonal factors are never formed.
    """
    y, A, B, H, G, m, F, c = model
    N, T, p = y.shape
    n = A.shape[-1]
    m, F = m.expand(N, n), F.expand(N, n, n)
    steps: list[tuple[Tensor, ...]] = []
    for t in range(T):
        predicted = m, syrk(F)
        there = ~y[:, t].isnan()
        seen = there.to(y.dtype)
        Bt = seen[..., None] * get_at_time(B, t)
        upper = torch.cat(
            (seen[..., None] * get_at_time(G, t), torch.diag_embed(1 - seen), multiply(Bt, F)), -1
        )
        lower = torch.nn.functional.pad(F, (upper.shape[-1] - n, 0))
        joint = gelqf(torch.cat((upper, lower), -2), mode="l", positive=True)
        L, KL, F = joint[..., :p, :p], joint[..., p:, :p], joint[..., p:, p:]
        _check_factor(who, batch, t, L)
        v = torch.where(there, y[:, t], 0.0) - multiply(Bt, m[..., None])[..., 0]
        z = trsm(L, v[..., None])
        m = m + multiply(KL, z)[..., 0]
        count = seen.sum(-1)
        value = -0.5 * z.square().sum((-2, -1)) - sumlogdiag(L) - 0.5 * _LOG_2_PI * count
        steps.append((m, syrk(F), *predicted, value))
        m = multiply(get_at_time(A, t), m[..., None])[..., 0] + get_at_time(c, t)
        F = gelqf(
            torch.cat((multiply(get_at_time(A, t), F), get_at_time(H, t).expand(N, n, -1)), -1),
            mode="l",
            positive=True,
        )
    return _stack_steps(steps, model)


def _stack_steps(steps: list[tuple[Tensor, ...]], model: tuple[Tensor, ...]) -> list[Tensor]:
    if steps:
        return [torch.stack(parts, 1) for parts in zip(*steps, strict=True)]
    y, A = model[:2]
    N, n = y.shape[0], A.shape[-1]
    return [y.new_empty(shape) for shape in ((N, 0, n), (N, 0, n, n), (N, 0, n), (N, 0, n, n), (N, 0))]


def _symmetrise(X: Tensor) -> Tensor:
    return 0.5 * (X + X.mT)


def _factorise(who: str, batch: torch.Size, t: int, S: Tensor) -> Tensor:
    try:
        return potrf(S)
    except _exceptions.NotPositiveDefiniteError as error:
        code = error.minor
        item = error.item
    except _exceptions.NonFiniteError as error:
        code = -error.pivot
        item = error.item
    raise _errors.innovation_failed(who, batch, S.shape[-1], (item[0] if item else 0, t, code))


def _check_factor(who: str, batch: torch.Size, t: int, L: Tensor) -> None:
    """Raise if the diagonal of a factor from LQ has a zero. (Waits for the device.)"""
    zero = (L.diagonal(dim1=-2, dim2=-1) <= 0).flatten()
    if bool(zero.any()):
        first = int(zero.to(torch.uint8).argmax())
        raise _errors.innovation_failed(
            who, batch, L.shape[-1], (first // L.shape[-1], t, first % L.shape[-1] + 1)
        )
