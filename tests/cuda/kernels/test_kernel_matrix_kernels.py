"""Matrices of covariance functions and their gradients: CUDA kernels against the kernels of the models."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from machines import MACHINES, Machine
from tolerances import assert_close
from torch import Tensor

from lapgrad._kernels.cuda.large import kernel_matrix as _plans
from lapgrad.fused._kernel_matrix import Formula
from lapgrad.models.kernels import (
    RBF,
    Kernel,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    RationalQuadratic,
    White,
)
from lapgrad.models.kernels._blocks import flatten_tree

machines = pytest.mark.parametrize("machine", MACHINES)

#: More rows than a block of threads has, and a number of columns that is no multiple of a step.
ROWS, COLUMNS, DIMENSIONS = 150, 37, 3


def make_mixture() -> Kernel:
    """Return a sum of products in which every formula occurs."""
    return (
        RBF([0.6, 0.9, 0.7], variance=1.3) * Periodic(0.8, 1.1, 0.9, active_dims=[1])
        + 0.4 * Matern12(0.9, variance=0.6, active_dims=[0, 2]) * Matern32(0.7, variance=1.2)
        + Matern52(0.5, variance=0.3, active_dims=[2]) * RationalQuadratic(0.8, 0.9, 1.7)
        + Linear([0.2, 0.3, 0.1])
        + White(0.5)
    )


def make_rbf() -> Kernel:
    return RBF(0.7, variance=1.3)


class Case:
    """A kernel, points of rows and columns, and what ``matrix`` of the kernel says of them."""

    def __init__(self, machine: Machine, kernel: Kernel, dtype: torch.dtype) -> None:
        points = torch.rand(ROWS + COLUMNS, DIMENSIONS, dtype=torch.float64).to(machine.device, dtype)
        points[1] = points[0]  # two rows coincide, and a row and a column
        points[ROWS] = points[0]
        self.machine, self.kernel, self.dtype = machine, kernel.to(machine.device, dtype), dtype
        with torch.no_grad():
            self.scalars = kernel.scalars()
            self.F, self.G = (kernel.features(X) for X in (points[:ROWS], points[ROWS:]))

    def express(self, F: object) -> Formula:
        formula = self.kernel.express(self.scalars, F)
        assert formula is not None
        return formula

    def join(self, formula: Formula) -> Tensor:
        return formula.join_features(len(flatten_tree(formula.features)[0]))

    def fill(self, G: object, noise: Tensor | None, lower_only: bool) -> Tensor:
        """Return the matrix in a part of a larger one; nothing outside of that part may be written."""
        formula = self.express(self.F)
        F, scalars = self.join(formula), formula.join_scalars()
        columns = None if G is None else self.join(self.express(G))
        m = ROWS if columns is None else len(columns)
        memory = torch.full((ROWS + 1, m + 2), torch.nan, dtype=self.dtype, device=self.machine.device)
        K = memory[:-1, 1:-1]
        self.machine.launch(_plans.plan_fill(K, formula.text, scalars, F, columns, noise, lower_only))
        outside = memory.clone()
        outside[:-1, 1:-1] = torch.nan
        assert bool(outside.isnan().all())
        return K

    def differentiate(self, G: object, gK: Tensor, slices: tuple[int, int]) -> tuple[Tensor, Tensor]:
        formula = self.express(self.F)
        F, scalars = self.join(formula), formula.join_scalars()
        columns = None if G is None else self.join(self.express(G))
        of_rows = torch.full((slices[0], *F.shape), torch.nan, dtype=self.dtype, device=F.device)
        sums = torch.full(
            (slices[0] * _plans.count_row_blocks(F), len(scalars)), torch.nan, dtype=torch.float64
        ).to(F.device)
        self.machine.launch(
            _plans.plan_gradient(of_rows, sums, formula.text, scalars, F, columns, gK, slices, 3.0)
        )
        return sums.sum(0), of_rows.sum(0)

    def differentiate_by_autograd(self, G: object, gK: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients for the scalars, and for the features of rows (not of columns)."""
        formula = self.express(self.F)
        leaves = [tensor.clone().requires_grad_() for tensor in formula.tensors]
        new = {id(old): leaf for old, leaf in zip(formula.tensors, leaves, strict=True)}

        def replace(tree: Any) -> Any:
            if isinstance(tree, Tensor):
                return new.get(id(tree), tree)
            return tuple(replace(part) for part in tree)

        columns = self.G if G is not None else self.F
        K = self.kernel.matrix(replace(self.scalars), replace(self.F), columns)
        found = torch.autograd.grad(K, leaves, gK, allow_unused=True)
        dense = [torch.zeros_like(leaf) if g is None else g for leaf, g in zip(leaves, found, strict=True)]
        count = len(formula.scalars)
        return torch.stack(dense[:count]), torch.cat(dense[count:], -1)


CASES = [
    pytest.param(make_mixture, torch.float64, id="mixture"),
    pytest.param(make_rbf, torch.float64, id="rbf"),
    pytest.param(make_rbf, torch.float32, id="rbf-float32"),
]
cases = pytest.mark.parametrize(("make", "dtype"), CASES)


@machines
@cases
def test_matrix_of_two_sets_of_points(machine: Machine, make: type[Kernel], dtype: torch.dtype) -> None:
    case = Case(machine, make(), dtype)
    assert_close(case.fill(case.G, None, False), case.kernel.matrix(case.scalars, case.F, case.G).detach())


@machines
@cases
def test_symmetric_matrix(machine: Machine, make: type[Kernel], dtype: torch.dtype) -> None:
    case = Case(machine, make(), dtype)
    expected = case.kernel.matrix(case.scalars, case.F, None).detach()
    noise = torch.rand(ROWS, dtype=torch.float64).to(expected)
    whole = case.fill(None, noise, False)
    assert torch.equal(whole, whole.mT)
    assert_close(whole, expected + torch.diag(noise))
    lower = case.fill(None, noise[0], True)
    assert_close(lower.tril(), (expected + noise[0] * torch.eye(ROWS).to(expected)).tril())


@machines
@cases
def test_gradient(machine: Machine, make: type[Kernel], dtype: torch.dtype) -> None:
    case = Case(machine, make(), dtype)
    gK = torch.randn(ROWS, COLUMNS, dtype=torch.float64).to(machine.device, dtype)
    scalars, rows = case.differentiate_by_autograd(case.G, gK)
    for layout, slices in ((gK, (3, 16)), (gK.mT.contiguous().mT, (1, 48))):
        of_scalars, of_rows = case.differentiate(case.G, layout, slices)
        assert_close(of_scalars.to(dtype), scalars)
        assert_close(of_rows, 3.0 * rows)


@machines
def test_gradient_of_points_with_themselves(machine: Machine) -> None:
    """White noise has a gradient on the diagonal only."""
    case = Case(machine, make_mixture(), torch.float64)
    gK = torch.randn(ROWS, ROWS, dtype=torch.float64).to(machine.device)
    scalars, rows = case.differentiate_by_autograd(None, gK)
    of_scalars, of_rows = case.differentiate(None, gK, (2, 80))
    assert_close(of_rows, 3.0 * rows)
    assert_close(of_scalars[:-1], scalars[:-1])
    assert_close(of_scalars[-1], gK.diagonal().sum())


@pytest.mark.parametrize(
    ("rows", "columns"), [(1, 1), (128, 17), (1000, 1000), (20000, 20000), (70000, 500), (500, 70000)]
)
def test_slices_cover_all_columns(rows: int, columns: int) -> None:
    slices, width = _plans.choose_slices(rows, columns)
    assert (slices - 1) * width < columns <= slices * width
    assert width % _plans.STEP == 0
