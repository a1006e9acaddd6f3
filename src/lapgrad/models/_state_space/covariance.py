"""Covariance matrices that stay positive definite while they are learned."""

from __future__ import annotations

import torch
from torch import Tensor

from lapgrad import _exceptions
from lapgrad.models._parameters import ParametrisedModule, Value, positive, unbounded
from lapgrad.ops.maketrian import maketrian
from lapgrad.ops.potrf import potrf
from lapgrad.ops.syrk import syrk


class Covariance(ParametrisedModule):
    """A learned covariance L Lᵀ, with L lower triangular with a positive diagonal.

    Args:
        value: (n, n), positive definite, or (n,): a diagonal.
        diagonal: Keep it diagonal.

    Attributes:
        deviations: (n,), the diagonal of L.
        below: (n (n - 1) / 2,), the entries of L below the diagonal, row by row; not with ``diagonal``.
    """

    deviations = positive()
    below = unbounded()

    def __init__(self, value: Value, *, diagonal: bool = False) -> None:
        super().__init__()
        tensor = torch.as_tensor(value, dtype=torch.float64).detach()
        if tensor.dim() not in (1, 2) or tensor.shape[0] != tensor.shape[-1]:
            raise _exceptions.ShapeError(
                f"Covariance: value must have shape (n, n) or (n,), got {tuple(tensor.shape)}."
            )
        self.diagonal = diagonal
        if tensor.dim() == 1 and bool((tensor > 0).all()):
            self.deviations = tensor.sqrt()
            if not diagonal:
                self.below = tensor.new_zeros(len(tensor) * (len(tensor) - 1) // 2)
            return
        L = potrf(torch.diag(tensor) if tensor.dim() == 1 else tensor)
        self.deviations = L.diagonal()
        if not diagonal:
            rows, columns = torch.tril_indices(L.shape[0], L.shape[1], -1)
            self.below = L[rows, columns]

    def set_matrix(self, value: Tensor, name: str = "Covariance: value") -> None:
        """Set the covariance to a positive definite matrix (n, n), which messages call by a name."""
        n = len(self.deviations)
        if value.shape != (n, n):
            raise _exceptions.ShapeError(
                f"Covariance: a value of shape ({n}, {n}) is wanted, got {tuple(value.shape)}."
            )
        L = _factorise(name, value.detach().double())
        self.deviations = L.diagonal()
        if not self.diagonal:
            rows, columns = torch.tril_indices(n, n, -1)
            self.below = L[rows, columns]

    def factor(self) -> Tensor:
        """Return L, (n, n)."""
        L = torch.diag_embed(self.deviations)
        if self.diagonal or len(self.deviations) < 2:
            return L
        return L + maketrian(self.below, offset=-1)

    def matrix(self) -> Tensor:
        """Return L Lᵀ, (n, n)."""
        if self.diagonal or len(self.deviations) < 2:
            return torch.diag_embed(self.deviations.square())
        return syrk(self.factor())


def make_noise(who: str, value: Value | None, variances: Tensor, form: str) -> Covariance | None:
    """Return the covariance of the noise of p values at each time; None: there is no noise.

    Args:
        who: Name of the model, for messages.
        value: A number, (p,) or (p, p); 0: no noise; None: ``variances`` (p,).
        variances: What it is if it was not given.
        form: "full" or "diagonal".
    """
    p = len(variances)
    is_diagonal = form == "diagonal"
    if value is None:
        return Covariance(variances, diagonal=is_diagonal)
    given = torch.as_tensor(value, dtype=torch.float64)
    if not bool(given.any()):
        return None
    if given.shape not in ((), (p,), (p, p)):
        raise _exceptions.ShapeError(
            f"{who}: noise_var must be a number, ({p},) or ({p}, {p}), got shape {tuple(given.shape)}."
        )
    noise = Covariance(variances, diagonal=is_diagonal)
    noise.set_matrix(torch.diag(given.expand(p)) if given.dim() < 2 else given, f"{who}: noise_var")
    return noise


def _factorise(name: str, value: Tensor) -> Tensor:
    """Return the Cholesky factor of a covariance (n, n).

    Raises:
        OptionError: It is not positive definite, or not finite.
    """
    try:
        return potrf(value)
    except _exceptions.LapgradError as error:
        shown = value.item() if value.numel() == 1 else value.tolist()
        raise _exceptions.OptionError(f"{name} must be positive definite and finite, got {shown}.") from error
