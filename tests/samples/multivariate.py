"""Multivariate statistics: canonical correlations and discriminants."""

from __future__ import annotations

import random

import torch
from torch import Tensor

from samples.case import SWEEPS, Flags, OperatorCase, Recipe, draw_batch, draw_size, named
from samples.gesvd import gesvd

LABELS = (0, 1, 2, 1, 0, 2, 2, 1, 0, 0, 1, 2)


def _whitener(centred: Tensor, degrees: int, regularisation: float) -> Tensor:
    """L^-1 of the covariance L L^T."""
    identity = torch.eye(centred.shape[-1], dtype=centred.dtype, device=centred.device)
    L = torch.linalg.cholesky(centred.mT @ centred / degrees + regularisation * identity)
    return torch.linalg.solve_triangular(L, identity.expand(L.shape), upper=False)


def cca(
    X: Tensor, Y: Tensor, *, k: int | None = None, regularisation: float = 0.0
) -> tuple[Tensor, Tensor, Tensor]:
    X, Y = X - X.mean(-2, keepdim=True), Y - Y.mean(-2, keepdim=True)
    degrees = X.shape[-2] - 1
    Wx, Wy = _whitener(X, degrees, regularisation), _whitener(Y, degrees, regularisation)
    U, S, V = gesvd(Wx @ (X.mT @ Y / degrees) @ Wy.mT, rank=k)
    return S, Wx.mT @ U.mT, Wy.mT @ V.mT


def lda(
    X: Tensor,
    *,
    labels: tuple[int, ...],
    classes: int | None = None,
    k: int | None = None,
    regularisation: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Class by class. The c-th singular value is zero, and is not looked at."""
    index = torch.tensor(labels, device=X.device)
    classes = max(labels) + 1
    parts = [X[..., index == c, :] for c in range(classes)]
    means = torch.stack([part.mean(-2) for part in parts], -2)
    within = torch.cat([part - part.mean(-2, keepdim=True) for part in parts], -2)
    W = _whitener(within, X.shape[-2] - classes, regularisation)
    sizes = torch.tensor([int((index == c).sum()) for c in range(classes)], dtype=X.dtype, device=X.device)
    between = (means - X.mean(-2, keepdim=True)) * (sizes / (classes - 1)).sqrt()[:, None]
    count = min(X.shape[-1], classes - 1)
    U, S, _ = gesvd(W @ between.mT, rank=count if k is None else k)
    return S * S, W.mT @ U.mT


def _draw_cca(rng: random.Random, largest: int) -> Recipe:
    """Twice as many rows as columns of both together, so that covariances are well conditioned."""
    p, q = (draw_size(rng, 1, min(largest, 40)) for _ in range(2))
    n = draw_size(rng, 2 * (p + q) + 2, 4 * (p + q) + 2)
    batch = draw_batch(rng, max(n, 2))
    flags: Flags = {"k": rng.randint(1, min(p, q))} if rng.random() < 0.5 else {}
    if rng.random() < 0.3:
        flags["regularisation"] = 0.5
    return named(((*batch, n, p), (*batch, n, q)), flags)


def _draw_lda(rng: random.Random, largest: int) -> Recipe:
    """Every class has members, and there are twice as many rows as columns and classes."""
    d, classes = draw_size(rng, 1, min(largest, 40)), rng.randint(2, 6)
    labels = [*range(classes), *(rng.randrange(classes) for _ in range(2 * d + 2 * classes))]
    rng.shuffle(labels)
    flags: Flags = {"labels": tuple(labels)}
    if rng.random() < 0.5:
        flags["k"] = rng.randint(1, min(d, classes - 1))
    if rng.random() < 0.3:
        flags["regularisation"] = 0.5
    return named(((*draw_batch(rng, len(labels)), len(labels), d),), flags)


CASES = (
    OperatorCase(
        "linalg.cca",
        cca,
        (
            named(((9, 3), (9, 2)), {}),
            named(((9, 2), (9, 3)), {"k": 1}),
            named(((8, 3), (8, 3)), {"regularisation": 0.5}),
            named(((3, 4), (3, 2)), {"regularisation": 0.5, "k": 2}),
            named(((9, 1), (9, 1)), {}),
            named(((2, 9, 3), (2, 9, 2)), {}),
            named(((0, 9, 3), (0, 9, 2)), {}),
            named(((9, 3), (2, 9, 2)), {}),
            named(((2, 1, 9, 2), (3, 9, 2)), {"k": 1}),
        ),
        ("general", "general"),
        ("X", "Y"),
        condition=lambda n: 10.0,
        operator_name="gesvd",
        draw=_draw_cca,
        needs_distinct_columns=True,
        passes=2 * SWEEPS,  # and the covariances and their factors
        saved=(15, 15),
    ),
    OperatorCase(
        "linalg.lda",
        lda,
        (
            named(((12, 3),), {"labels": LABELS}),
            named(((12, 4),), {"labels": LABELS, "k": 1}),
            named(((12, 1),), {"labels": LABELS}),
            named(((12, 11),), {"labels": LABELS, "regularisation": 0.5}),
            named(((2, 12, 3),), {"labels": LABELS, "classes": 3}),
            named(((0, 12, 3),), {"labels": LABELS}),
            named(((2, 1, 12, 2),), {"labels": LABELS}),
            named(((7, 2),), {"labels": (0, 1, 2, 3, 3, 1, 0)}),
        ),
        ("general",),
        ("X",),
        condition=lambda n: 10.0,
        operator_name="gesvd",
        draw=_draw_lda,
        passes=2 * SWEEPS,  # and the covariances and their factors
        saved=(17,),
    ),
)
