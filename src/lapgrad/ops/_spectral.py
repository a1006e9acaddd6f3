"""The policies of syevd and gesvd for the derivative at equal eigenvalues or singular values.

The derivative of an eigenvector divides by the gaps between eigenvalues. ``POLICIES`` lists what a gradient
can be where a gap vanishes. The formulas are in ``_formulas/gaps.py``. ``report`` reads values, and is
therefore called from kernels only.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from lapgrad import _errors, _exceptions

#: What gradients use in place of 1/t for a gap t of up to ``tol`` times the largest value:
#: mask     0: exact when the loss depends on close values and their vectors only through what they have in
#:          common (the space spanned, a symmetric function of the values). Also 0 for wider gaps, up to
#:          eps^(1/4) of the largest value, where what is divided is only rounding (``find_rounding``);
#: lorentz  t / (t^2 + tol^2), also for wider gaps: smooth;
#: clamp    1 / (sign(t) max(|t|, tol)), where a gap of 0 has the sign of the index order;
#: nan      1/t, also where that is infinite or NaN;
#: raise    as mask, and an exception when the loss is not of the kind for which that is exact.
POLICIES = ("mask", "lorentz", "clamp", "nan", "raise")

#: For formulas of this library whose loss is known to be of that kind: as mask, without the check.
QUIET = "quiet"


def check_policy(operator: str, degeneracy: str) -> None:
    """Raise if ``degeneracy`` is not the name of a policy."""
    if degeneracy not in POLICIES:
        raise _errors.unknown_option(operator, "degeneracy", degeneracy, POLICIES)


def resolve_policy(degeneracy: str) -> str:
    """Return the policy whose formula ``degeneracy`` follows."""
    return "mask" if degeneracy == QUIET else degeneracy


def report(operator: str, degeneracy: str, ambiguous: Tensor, values: str) -> None:
    """Warn, or with "raise" raise, if the loss depends on vectors that the matrix does not determine.

    Args:
        operator: Its name.
        degeneracy: One of ``POLICIES``; "nan" asks for no report.
        ambiguous: bool (*batch), the items whose gradient does not exist. Read here: call from a kernel.
        values: What the matrix has there: "equal eigenvalues".
    """
    if degeneracy == "nan" or not ambiguous.any():
        return
    if degeneracy == "raise":
        flat = int(ambiguous.flatten().to(torch.uint8).argmax())
        raise _errors.degenerate(operator, ambiguous.shape, flat, values)
    reason = _errors.explain_degeneracy("a matrix", values)
    warn_once(
        f"{operator}: {reason} The gradient returned is finite, and follows degeneracy={degeneracy!r}; "
        f"degeneracy='raise' names the batch item."
    )


def warn_once(text: str) -> None:
    """Warn with a text that is always the same: Python then shows it once, or as its filters say."""
    warnings.warn(text, _exceptions.DegenerateSpectrumWarning, stacklevel=2)
