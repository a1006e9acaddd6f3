"""kalman_nll: the Kalman filter as a log likelihood, and its adjoint, in plain PyTorch."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lapgrad._formulas.kalman import (
    OPERANDS,
    Model,
    compute_vjp,
    find_continuing_steps,
    observe,
    predict,
    symmetrise,
)
from lapgrad._torch.precision import in_full_precision


@in_full_precision
def kalman_nll(s: Tensor, *operands: Tensor) -> tuple[int, int, int] | None:
    """s := the value of each series. Returns (series, step, code) of the first series that fails.

    Code +k: leading minor k of the innovation covariance is not positive; -k: pivot k is not finite;
    -(p + 1): the innovation is not.
    """
    model = Model(*operands)
    series, times, p = model.y.shape
    m, P = model.m, symmetrise(model.P)
    terms, infos, pivots, going_on = [], [], [], find_continuing_steps(model.y)
    for t in range(times):
        seen = observe(model, t, m, P)
        logs = seen.L.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        constant = 0.5 * math.log(2 * math.pi) * seen.seen.sum(-1)
        terms.append(0.5 * (seen.v * seen.u).sum(-1) + logs + constant)
        infos.append(seen.info)
        pivots.append(seen.L.diagonal(dim1=-2, dim2=-1))
        m, P = predict(model, t, seen, going_on)
    if not terms or not series:
        s.zero_()
        return None
    values = torch.stack(terms, 1)
    s.copy_(values.sum(1))
    info = torch.stack(infos, 1)
    bad = (info != 0) | ~values.isfinite()
    if not bad.any():
        return None
    at = int(bad.flatten().to(torch.uint8).argmax())
    first, step = divmod(at, times)
    return first, step, _find_code(int(info[first, step]), pivots[step][first], p)


def _find_code(info: int, pivots: Tensor, p: int) -> int:
    """The code of a failure; LAPACK has one number for NaN and for a pivot that is not positive."""
    finite = pivots.isfinite().tolist()
    wrong = [i + 1 for i in range(p if info == 0 else info) if not finite[i]]
    if wrong:
        return -wrong[0]
    return info if info else -(p + 1)


@in_full_precision
def kalman_nll_vjp(gs: Tensor, results: Sequence[Tensor | None], *operands: Tensor) -> None:
    """Results := the gradients of y, A, B, Q, R, m, P, c; None: not wanted."""
    found = compute_vjp(Model(*operands), gs)
    for name, result in zip(OPERANDS, results, strict=True):
        if result is not None:
            result.copy_(found[name])
