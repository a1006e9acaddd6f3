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
    integrate_out_flat,
    observe,
    predict,
)
from lapgrad._torch.precision import in_full_precision


@in_full_precision
def kalman_nll(s: Tensor, *operands: Tensor) -> tuple[int, int, int] | None:
    """s := the value of each series. Returns (series, step, code) of the first series that fails.

    Code +k: leading minor k of the innovation covariance is not positive; -k: pivot k is not finite;
    -(p + 1): the innovation is not; p + 2: the data do not determine the flat direction ``step``.
    """
    model = Model(*operands)
    series, times, p = model.y.shape
    m, P = model.get_first_moments()
    terms, infos, pivots, innovations, going_on = [], [], [], [], find_continuing_steps(model.y)
    for t in range(times):
        seen = observe(model, t, m, P)
        logs = seen.L.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        constant = 0.5 * math.log(2 * math.pi) * seen.seen.sum(-1)
        terms.append(torch.stack((logs + constant, seen.z[..., 0].square().sum(-1)), -1))
        innovations.append(seen.z)
        infos.append(seen.info)
        pivots.append(seen.L.diagonal(dim1=-2, dim2=-1))
        m, P = predict(model, t, seen, going_on)
    if not series or (not terms and m.shape[-1] == 1):
        s.zero_()
        return None
    flat = integrate_out_flat(innovations, m)
    if terms:
        values, info = torch.stack(terms, 1), torch.stack(infos, 1)
        s.copy_(values[..., 0].sum(1) + flat.value)
        bad = (info != 0) | ~values.isfinite().all(-1)
        if bad.any():
            at = int(bad.flatten().to(torch.uint8).argmax())
            first, step = divmod(at, times)
            return first, step, _find_code(int(info[first, step]), pivots[step][first], p)
    undetermined = flat.info.nonzero()
    if len(undetermined):
        first = int(undetermined[0, 0])
        return first, int(flat.info[first]) - 1, p + 2
    return None


def _find_code(info: int, pivots: Tensor, p: int) -> int:
    """Return the code of a failure; LAPACK has one number for NaN and for a pivot that is not positive."""
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
