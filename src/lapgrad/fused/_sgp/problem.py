"""The arguments of the bound of a sparse Gaussian process, and the sums of their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lapgrad.distributed.group import Group
from lapgrad.fused._sgp.kernel_function import KernelFunction
from lapgrad.fused._sgp.rows import Rows
from lapgrad.fused._sgp.statistics import ARITHMETIC


class Inputs(NamedTuple):
    """The tensors of the criterion."""

    Z: Tensor
    X: Tensor
    Y: Tensor
    noise_var: Tensor
    parameters: tuple[Tensor, ...]

    @classmethod
    def from_sequence(cls, values: Sequence[Tensor]) -> Inputs:
        """From tensors in the order of the attributes, those of the parameters last."""
        Z, X, Y, noise_var, *parameters = values
        return cls(Z, X, Y, noise_var, tuple(parameters))


class Needs(NamedTuple):
    """Which of the tensors need a gradient."""

    Z: bool
    X: bool
    Y: bool
    noise_var: bool
    parameters: tuple[bool, ...]

    @classmethod
    def from_sequence(cls, values: Sequence[bool]) -> Needs:
        """From flags in the order of the attributes, those of the parameters last."""
        Z, X, Y, noise_var, *parameters = values
        return cls(Z, X, Y, noise_var, tuple(parameters))

    @property
    def kernel(self) -> bool:
        """Whether Z, X or a parameter of the kernel needs a gradient."""
        return self.Z or self.X or any(self.parameters)

    @property
    def any(self) -> bool:
        """Whether any tensor needs a gradient."""
        return self.kernel or self.Y or self.noise_var


class Gradients(NamedTuple):
    """Gradients of ``Inputs``, in their dtype; None where none is needed."""

    Z: Tensor | None
    X: Tensor | None
    Y: Tensor | None
    noise_var: Tensor | None
    parameters: tuple[Tensor | None, ...]


class Leaves:
    """Z and the parameters of the kernel in float64, and the sums of their gradients over the chunks."""

    def __init__(self, tensors: Sequence[Tensor], needs: Sequence[bool]) -> None:
        self.originals, self.needs = tensors, needs
        self.tensors = [tensor.detach().to(ARITHMETIC) for tensor in tensors]
        # A tensor that is converted is a copy, else a view: the caller's own is never marked.
        for tensor, need in zip(self.tensors, needs, strict=True):
            tensor.requires_grad_(need)
        self.wanted = [tensor for tensor, need in zip(self.tensors, needs, strict=True) if need]
        self.sums: list[Tensor | None] = [None] * len(self.wanted)

    def add(
        self, results: Sequence[Tensor], cotangents: Sequence[Tensor], further: Sequence[Tensor] = ()
    ) -> list[Tensor | None]:
        """Add the vjp of ``results`` to the sums; return the gradients of the ``further`` tensors."""
        pairs = [(r, c) for r, c in zip(results, cotangents, strict=True) if r.requires_grad]
        sources = [*self.wanted, *further]
        if not pairs or not sources:
            return [None] * len(further)
        outputs, weights = zip(*pairs, strict=True)
        found = torch.autograd.grad(outputs, sources, weights, allow_unused=True)
        for place, total in enumerate(self.sums):
            gradient = found[place]
            if gradient is not None:
                self.sums[place] = gradient if total is None else total + gradient
        return list(found[len(self.sums) :])

    def reset_sums(self) -> None:
        """Set the sums to zero."""
        self.sums = [None] * len(self.wanted)

    def fill_sums(self) -> list[Tensor]:
        """Return the sums themselves, not copies, with zeros where nothing was added."""
        filled = [
            torch.zeros_like(tensor) if total is None else total.clone()
            for tensor, total in zip(self.wanted, self.sums, strict=True)
        ]
        self.sums = list(filled)
        return filled

    def convert_sums(self) -> list[Tensor | None]:
        """Return the sums in the dtypes of the original tensors; None for those that need no gradient."""
        found = iter(self.sums)
        converted: list[Tensor | None] = []
        for tensor, need in zip(self.originals, self.needs, strict=True):
            total = next(found) if need else None
            if need:
                total = torch.zeros_like(tensor) if total is None else total.to(tensor.dtype)
            converted.append(total)
        return converted


class Problem(NamedTuple):
    """The arguments of one evaluation.

    The rows are those of ``data``, which may read them from files; X and Y of ``inputs`` then have no rows.
    ``leaves`` has Z, the parameters of the kernel, and those that the targets depend on.
    """

    operator: str
    kernel: KernelFunction
    leaves: Leaves
    inputs: Inputs
    needs: Needs
    jitter: float
    width: int
    group: Group
    data: Rows

    @property
    def target_parameters(self) -> list[Tensor]:
        """The tensors that the targets depend on, in float64."""
        return self.leaves.tensors[1 + len(self.kernel.parameters) :]
