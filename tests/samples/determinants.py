"""Inverses and determinants."""

from __future__ import annotations

from typing import NamedTuple

import torch
from device import DEVICE
from torch import Tensor

from lapgrad import _torch_lu as torch_lu
from samples.case import OperatorCase, square_recipes


class _LogDeterminant(NamedTuple):
    sign: Tensor
    logabsdet: Tensor


def _sign_and_diagonal(A: Tensor) -> tuple[Tensor, Tensor]:
    """A = Q R: det Q, and the diagonal of R.

    torch.linalg.det and slogdet do not serve as references: derivatives of their forward mode derivatives
    leave out those of the factors. LAPACK computes them for every device: cuSOLVER's are less exact.
    """
    Q, R = torch.linalg.qr(A.cpu())
    sign, diagonal = torch_lu.det(Q.detach()).sign(), R.diagonal(dim1=-2, dim2=-1)
    return sign.to(A.device), diagonal.to(A.device)


def slogdet(A: Tensor) -> _LogDeterminant:
    sign, diagonal = _sign_and_diagonal(A)
    return _LogDeterminant(sign * diagonal.detach().sign().prod(-1), diagonal.abs().log().sum(-1))


def det(A: Tensor) -> Tensor:
    sign, diagonal = _sign_and_diagonal(A)
    return sign * diagonal.prod(-1)


def inverse(A: Tensor) -> Tensor:
    return torch_lu.inv(A)


#: The roundings of n pivots add up, in the operator and, differently, in its reference. Those of cuSOLVER's
#: elimination are larger than LAPACK's: 97 units are seen at n = 257.
_PIVOTS = 2.0 if DEVICE.type == "cpu" else 3.0

CASES: tuple[OperatorCase, ...] = (
    OperatorCase("inverse", inverse, square_recipes(), ("regular",), ("A",), overwrites=0),
    OperatorCase("det", det, square_recipes(), ("regular",), ("A",), condition=lambda n: _PIVOTS),
    OperatorCase("slogdet", slogdet, square_recipes(), ("regular",), ("A",), condition=lambda n: _PIVOTS),
)
