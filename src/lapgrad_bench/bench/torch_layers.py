"""Runs the layers of deep Gaussian processes on torch.linalg in place of lapgrad's operators.

Everything else of a model stays the same code, so that two runs differ in the factorisations, the triangular
solves and products, and their gradients, and in nothing else.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from lapgrad.models._deep import latent_layer, sparse_layer


def _solve(L: Tensor, A: Tensor, *, transpose: bool = False) -> Tensor:
    return torch.linalg.solve_triangular(L.mT if transpose else L, A, upper=transpose)


def _multiply_triangular(L: Tensor, A: Tensor, *, transpose: bool = False) -> Tensor:
    return (L.mT if transpose else L) @ A


def _multiply_by_transpose(A: Tensor, *, transpose: bool = False) -> Tensor:
    return A.mT @ A if transpose else A @ A.mT


def _sum_log_diagonal(L: Tensor) -> Tensor:
    return L.diagonal(dim1=-2, dim2=-1).log().sum(-1)


#: What replaces each operator that the modules of the layers import.
_REPLACEMENTS: dict[str, Callable[..., Any]] = {
    "potrf_ex": torch.linalg.cholesky_ex,
    "potri": torch.cholesky_inverse,
    "sumlogdiag": _sum_log_diagonal,
    "syrk": _multiply_by_transpose,
    "trmm": _multiply_triangular,
    "trsm": _solve,
}
_MODULES: tuple[ModuleType, ...] = (sparse_layer, latent_layer)


@contextlib.contextmanager
def replace_operators_by_torch() -> Iterator[None]:
    """Make layers use torch.linalg, forward and backward, in all threads, until the context ends.

    Example:
        >>> from lapgrad.models._deep import sparse_layer
        >>> with replace_operators_by_torch():
        ...     sparse_layer.potrf_ex(torch.tensor([[4.0, 2.0], [2.0, 5.0]]))[0].tolist()
        [[2.0, 0.0], [1.0, 2.0]]
    """
    places = [(module, name) for module in _MODULES for name in _REPLACEMENTS if name in vars(module)]
    originals = [vars(module)[name] for module, name in places]
    for module, name in places:
        setattr(module, name, _REPLACEMENTS[name])
    try:
        yield
    finally:
        for (module, name), original in zip(places, originals, strict=True):
            setattr(module, name, original)
