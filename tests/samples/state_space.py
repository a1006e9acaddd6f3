"""Models of time series: the Kalman filter."""

from __future__ import annotations

import math
import random

import torch
from torch import Tensor

from samples.case import OperatorCase, Recipe, Shape, draw_batch, draw_size, named


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
    diffuse: int = 0,
) -> Tensor:
    """The filter as textbooks have it, without missing observations; flat priors by de Jong's columns."""
    times, p = y.shape[-2:]
    # Symmetrised, so that their gradients are symmetric.
    Q, R, P = (0.5 * (X + X.mT) for X in (Q, R, P))

    def at(X: Tensor, t: int) -> Tensor:
        return X if X.dim() == 2 else X[..., t if X.shape[-3] > 1 else 0, :, :]

    batch = torch.broadcast_shapes(
        y.shape[:-2], *[X.shape[:-3] for X in (A, B, Q, R)], m.shape[:-1], P.shape[:-2]
    )
    # With no time steps the gradients are zeros, not None.
    s = torch.zeros(batch, dtype=y.dtype, device=y.device) + 0.0 * sum(X.sum() for X in (y, A, B, Q, R, m, P))
    n = A.shape[-1]
    directions = torch.eye(n, dtype=y.dtype, device=y.device)[:, :diffuse]
    m = torch.cat((m[..., None], directions.expand(*m.shape[:-1], n, diffuse)), -1)
    first = torch.eye(1, 1 + diffuse, dtype=y.dtype, device=y.device)
    innovations = []
    for t in range(times):
        # (torch.linalg.solve and torch.logdet have wrong tangents of tangents.)
        L = torch.linalg.cholesky(at(B, t) @ P @ at(B, t).mT + at(R, t))
        v = (y[..., t, :, None] - observation_offset) * first - at(B, t) @ m
        z = torch.linalg.solve_triangular(L, v, upper=False)
        W = torch.linalg.solve_triangular(L, at(B, t) @ P, upper=False)
        half_logdet = L.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        s = s + half_logdet + 0.5 * p * math.log(2 * math.pi)
        innovations.append(z.expand(*batch, *z.shape[-2:]))
        m, P = m + W.mT @ z, P - W.mT @ W
        m, P = at(A, t) @ m + state_offset * first, at(A, t) @ P @ at(A, t).mT + at(Q, t)
    if not times:
        return s
    Z = torch.cat(innovations, -2)
    # Least squares by QR: with the normal equations, d loses twice as many digits.
    orthonormal, L = torch.linalg.qr(Z[..., 1:])
    rest = Z[..., :1] - orthonormal @ (orthonormal.mT @ Z[..., :1])
    return s + 0.5 * rest.square().sum((-2, -1)) + L.diagonal(dim1=-2, dim2=-1).abs().log().sum(-1)


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


def _draw(rng: random.Random, largest: int) -> Recipe:
    """Series of a few steps; some operands are shared by all series, some by all steps."""
    times, n, p = rng.randint(0, 6), draw_size(rng, 1, min(largest, 12)), draw_size(rng, 1, min(largest, 8))
    batch = draw_batch(rng, max(n, p, 8))
    shapes = _shapes(times, n, p, batch)
    drawn: list[Shape] = []
    for position, shape in enumerate(shapes):
        if 1 <= position <= 4:  # A, B, Q and R may be those of each step
            varying = rng.choice((1, times)) if times else 1
            shape = (*batch, varying, *shape[-2:])
        drawn.append(shape[len(batch) :] if batch and rng.random() < 0.25 else shape)
    flags = {
        name: rng.uniform(-1, 1) for name in ("state_offset", "observation_offset") if rng.random() < 0.3
    }
    return named(tuple(drawn), flags)


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
            named(_shapes(3, 2, 2), {"diffuse": 1}),
            named(_shapes(3, 2, 1, batch=(2,)), {"diffuse": 2}),
            named(_shapes(3, 2, 1, batch=(0,)), {}),
            named(_shapes(2, 2, 1, batch=(2, 3)), {"state_offset": -1.0, "observation_offset": 2.0}),
            named(((3, 2), (2, 2), (2, 2), (2, 2), (2, 2), (2,), (2, 2)), {}),
            named(((5, 3, 1), (2, 2), (1, 2), (3, 2, 2), (1, 1), (2,), (2, 2)), {}),
            named(((3, 1), (2, 1, 2, 2), (2, 3, 1, 2), (2, 2), (3, 1, 1), (2,), (2, 2)), {}),
            named(((4, 1, 2, 1), (3, 1, 2, 2), (1, 2), (2, 2), (4, 3, 1, 1, 1), (3, 2), (4, 1, 2, 2)), {}),
            named(_shapes(2, 1, 1, batch=(17,)), {}),
        ),
        ("general", "contracting", "general", "spd", "spd", "general", "spd"),
        ("y", "A", "B", "Q", "R", "m", "P"),
        condition=lambda n: 10.0,
        draw=_draw,
        passes=24,  # 6 steps of a factorisation, a solve and two products
        scale_share=0.0,
        saved=(8, 8, 8, 8, 8, 8, 8),
    ),
)
