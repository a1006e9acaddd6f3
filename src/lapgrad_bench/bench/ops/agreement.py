"""Compares results and gradients of two libraries; only libraries that agree are timed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lapgrad_bench.bench.ops.cases import Case


class DisagreementError(AssertionError):
    """Two libraries gave different results, so that their times cannot be compared."""


@dataclass(frozen=True)
class Values:
    """Results of an operator, and gradients for all inputs if they were computed."""

    results: Sequence[Tensor]
    gradients: Sequence[Tensor] = ()

    def on_cpu(self) -> Values:
        """Return the values on the CPU, where other processes store theirs."""
        return Values([x.cpu() for x in self.results], [x.cpu() for x in self.gradients])


def compare(
    case: Case,
    seen: Values,
    reference: Values,
    *,
    symmetric: Sequence[int] = (),
    who: str = "",
    whose: str = "torch",
) -> None:
    """Check that results (up to free signs) and gradients are those of a reference.

    Args:
        case: what was computed.
        seen: values of lapgrad, or of another library.
        reference: values of torch, or of lapgrad where torch is left out.
        symmetric: positions of inputs for which only the symmetric part of the gradient is compared, besides
            those that the case names.
        who: name of the library in the message, with a space before it.
        whose: the library of the reference.

    Raises:
        DisagreementError: They differ by more than rounding explains.
    """
    pairs = {}
    for i, (mine, theirs) in enumerate(zip(seen.results, reference.results, strict=True)):
        mine = mine.reshape(theirs.shape) if mine.shape == (1,) and theirs.ndim == 0 else mine
        pairs[f"result {i}"] = (mine.abs(), theirs.abs()) if case.operator.signs else (mine, theirs)
    if seen.gradients:
        for i, (mine, theirs) in enumerate(zip(seen.gradients, reference.gradients, strict=True)):
            if i in case.operator.lower:
                mine, theirs = mine.tril(), theirs.tril()
            if i in case.operator.symmetric or i in symmetric:
                mine, theirs = (0.5 * (gradient + gradient.mT) for gradient in (mine, theirs))
            pairs[f"gradient {i}"] = (mine, theirs)
    # Rounding grows with the number of terms of a sum, which is the longer side.
    terms = max(case.shape.n, case.shape.m)
    allowed = case.operator.tolerance * terms * torch.finfo(case.dtype).eps
    for what, (mine, theirs) in pairs.items():
        if mine.shape != theirs.shape:
            raise DisagreementError(
                f"{case}: {what}{who} is {tuple(mine.shape)}, {tuple(theirs.shape)} in {whose}"
            )
        difference = _compute_difference(mine, theirs)
        if not difference <= allowed:
            raise DisagreementError(
                f"{case}: {what}{who} differs from {whose} by {difference:.1e} (relative to its largest "
                f"entry), allowed {allowed:.1e}"
            )


def _compute_difference(mine: Tensor, theirs: Tensor) -> float:
    """Return the largest difference relative to the largest entry; 0 where all entries of both are 0."""
    difference, largest = (mine - theirs).abs().max(), theirs.abs().max()
    return 0.0 if difference == 0.0 else float(difference / largest)
