"""Matrices of covariance functions that a device computes in one pass, and differentiates in another.

A device that has such kernels (``_kernels/cuda/kernel_matrix.py``) knows covariance functions as formulas.
Kernels of models return their formula by ``models.kernels.Kernel.express``.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lapgrad._kernels.table import has_kernel, lookup


class Formula(NamedTuple):
    """A covariance function k(f, g) of the features of two points, and its arguments.

    Attributes:
        text: A type of ``_kernels/cuda/kernels/covariance.cuh``, such as ``Sum<Rbf<2>, Constant>``.
        scalars: Its parameters, each a tensor of one number.
        features: (n, d_i) of the points, in the order in which the parts of the text use them.
    """

    text: str
    scalars: tuple[Tensor, ...]
    features: tuple[Tensor, ...]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Scalars and features, in this order."""
        return (*self.scalars, *self.features)

    def replace_tensors(self, tensors: tuple[Tensor, ...]) -> Formula:
        """Return the formula with other tensors, in the order of ``tensors``."""
        count = len(self.scalars)
        return Formula(self.text, tensors[:count], tensors[count:])

    def join_scalars(self) -> Tensor:
        """(p,), detached."""
        parts = [scalar.detach().reshape(1) for scalar in self.scalars]
        if not parts:
            return self.features[0].new_empty(0)
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def join_features(self, points: int) -> Tensor:
        """Return all features as one matrix (n, d), detached and contiguous; ``points`` is n."""
        parts = [features.detach() for features in self.features]
        if not parts:
            return self.scalars[0].detach().new_empty(points, 0)
        return (parts[0] if len(parts) == 1 else torch.cat(parts, -1)).contiguous()

    def split_gradients(self, of_scalars: Tensor, of_features: Tensor) -> tuple[Tensor, ...]:
        """Gradients of the joined tensors as gradients of ``tensors``."""
        scalars = [
            gradient.view(scalar.shape)
            for gradient, scalar in zip(of_scalars.unbind(), self.scalars, strict=True)
        ]
        sizes = [features.shape[-1] for features in self.features]
        return (*scalars, *of_features.split(sizes, -1))


def has_formulas(like: Tensor) -> bool:
    """Whether the device of ``like`` has kernels for formulas at all."""
    is_supported = like.dtype in (torch.float32, torch.float64)
    return is_supported and has_kernel("kernel_matrix", like) and has_kernel("kernel_matrix_vjp", like)


def serves(formula: Formula, like: Tensor) -> bool:
    """Whether the device of ``like`` has a kernel for the matrix of this formula."""
    if not has_formulas(like):
        return False
    one_item = all(scalar.numel() == 1 for scalar in formula.scalars) and all(
        features.dim() == 2 and features.dtype is like.dtype for features in formula.features
    )
    count = sum(features.shape[-1] for features in formula.features)
    return one_item and bool(lookup("serves_kernel_matrix", like)(count, like))


def fill_matrix(
    text: str,
    scalars: Tensor,
    F: Tensor,
    G: Tensor | None = None,
    *,
    noise: Tensor | None = None,
    lower_only: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """k(F, G), (n, m), in the memory of ``out``; G None: of F with itself, with ``noise`` on the diagonal."""
    K = F.new_empty(len(F), len(F if G is None else G)) if out is None else out
    lookup("kernel_matrix", F)(K, text, scalars, F, G, noise, lower_only)
    return K


def differentiate_matrix(
    text: str, scalars: Tensor, F: Tensor, G: Tensor | None, gK: Tensor, *, is_symmetric: bool = False
) -> tuple[Tensor, Tensor]:
    """The gradients of <gK, k(F, G)> for the scalars (p,) and for F (n, d); G None: for rows and columns."""
    found: tuple[Tensor, Tensor] = lookup("kernel_matrix_vjp", F)(F, text, scalars, G, gK, is_symmetric)
    return found
