"""Models of time series: the Kalman filter."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from samples.case import OperatorCase, named


def kalman_nll(
    y: Tensor,
    A: Tensor,
    B: Tensor,
    Q: Tensor,
    R: Tensor,
    m: Tensor,
    P: Tensor,
    *,
    state_offset: float = 0.0,
    observation_offset: float = 0.0,
) -> Tensor:
    """The filter as textbooks have it, without missing observations."""
    times, p = y.shape[-2:]
    # So that their gradients are symmetric.
    Q, R, P = (0.5 * (X + X.mT) for X in (Q, R, P))

    def at(X: Tensor, t: int) -> Tensor:
        return X if X.dim() == 2 else X[..., t if X.shape[-3] > 1 else 0, :, :]

    batch = torch.broadcast_shapes(
        y.shape[:-2], *[X.shape[:-3] for X in (A, B, Q, R)], m.shape[:-1], P.shape[:-2]
    )
    # Without steps the gradients are zero, but they are there.
    s = torch.zeros(batch, dtype=y.dtype, device=y.device) + 0.0 * sum(X.sum() for X in (y, A, B, Q, R, m, P))
    m = m[..., None]
    for t in range(times):
        # (torch.linalg.solve and torch.logdet have wrong tangents of tangents.)
        L = torch.linalg.cholesky(at(B, t) @ P @ at(B, t).mT + at(R, t))
        v = y[..., t, :, None] - observation_offset - at(B, t) @ m
        z = torch.linalg.solve_triangular(L, v, upper=False)
        W = torch.linalg.solve_triangular(L, at(B, t) @ P, upper=False)
        half_logdet = L.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        s = s + 0.5 * z.square().sum((-2, -1)) + half_logdet + 0.5 * p * math.log(2 * math.pi)
        m, P = m + W.mT @ z, P - W.mT @ W
        m, P = at(A, t) @ m + state_offset, at(A, t) @ P @ at(A, t).mT + at(Q, t)
    return s


def _shapes(
    times: int, n: int, p: int, batch: tuple[int, ...] = (), varying: int = 1
) -> tuple[tuple[int, ...], ...]:
    return (
        (*batch, times, p),
        (*batch, varying, n, n),
        (*batch, varying, p, n),
        (*batch, varying, n, n),
        (*batch, varying, p, p),
        (*batch, n),
        (*batch, n, n),
    )


CASES = (
    OperatorCase(
        "fused.kalman_nll",
        kalman_nll,
        (
            named(_shapes(2, 2, 2), {}),
            named(_shapes(3, 2, 1), {"state_offset": 0.5}),
            named(_shapes(3, 1, 2, varying=3), {"observation_offset": -0.5}),
            named(_shapes(4, 3, 2, batch=(2,), varying=4), {}),
            named(_shapes(0, 2, 1), {}),
            named(_shapes(3, 2, 1, batch=(0,)), {}),
            named(_shapes(2, 2, 1, batch=(2, 3)), {"state_offset": -1.0, "observation_offset": 2.0}),
            named(((3, 2), (2, 2), (2, 2), (2, 2), (2, 2), (2,), (2, 2)), {}),
            named(((5, 3, 1), (2, 2), (1, 2), (3, 2, 2), (1, 1), (2,), (2, 2)), {}),
            named(((3, 1), (2, 1, 2, 2), (2, 3, 1, 2), (2, 2), (3, 1, 1), (2,), (2, 2)), {}),
            named(((4, 1, 2, 1), (3, 1, 2, 2), (1, 2), (2, 2), (4, 3, 1, 1, 1), (3, 2), (4, 1, 2, 2)), {}),
            named(_shapes(2, 1, 1, batch=(17,)), {}),
        ),
        ("general", "general", "general", "spd", "spd", "general", "spd"),
        ("y", "A", "B", "Q", "R", "m", "P"),
        condition=lambda n: 10.0,
    ),
)
