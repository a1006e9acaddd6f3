"""Functions of symmetric matrices: the CUDA kernels against the rules in tensor operations."""

from __future__ import annotations

import pytest
import torch
from machines import MACHINES, Machine
from tolerances import assert_close
from torch import Tensor

from lapgrad._formulas.gaps import choose_tolerance
from lapgrad._kernels.cuda.runtime import items as _items
from lapgrad._kernels.cuda.small import eigh_fn as _eigh_fn
from lapgrad.linalg import _divided_differences

machines = pytest.mark.parametrize("machine", MACHINES)

#: Names and exponents; 70 is too large to be multiplied out.
FUNCTIONS = [("exp", 0.0), ("log", 0.0), ("sqrt", 0.0), ("rsqrt", 0.0), ("inv", 0.0)]
FUNCTIONS += [("power", exponent) for exponent in (0.5, -1.3, 3.0, -2.0, 0.0, 70.0)]

#: 70 roundings in a power of 70, and as many again in its derivative.
_UNITS = 300.0


def make_eigenvalues(machine: Machine, n: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return two items: with equal, close and distant eigenvalues."""
    values = torch.linspace(0.1, 1.1, 2 * n, dtype=torch.float64).view(2, n).sort().values
    values[0, 1] = values[0, 0]
    values[1, 1] = values[1, 0] * (1.0 + 1e-9)
    values[1, -1] = 3.0 * values[1, -2]
    return values.sort().values.to(machine.device, dtype)


def find_rule(values: Tensor, f: str, exponent: float) -> tuple[_divided_differences.Rule, float]:
    tol = choose_tolerance(values.shape[-1], values.dtype, None)
    return _divided_differences.find_rule(f, exponent, tol), tol


@machines
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_values_and_divided_differences(machine: Machine, dtype: torch.dtype) -> None:
    n = 35
    values = make_eigenvalues(machine, n, dtype)
    G = torch.randn(2, n, n, dtype=torch.float64).to(values)
    U = torch.randn(2, n, n, dtype=torch.float64).to(values).mT
    for f, exponent in FUNCTIONS:
        rule, tol = find_rule(values, f, exponent)
        P, W = G.clone(), torch.full_like(G, torch.nan)
        machine.launch(_eigh_fn.plan_weighing(P, values, f, exponent, tol))
        wanted = rule.differences(values) * 0.5 * (G + G.mT)
        assert_close(P, wanted, _UNITS)
        assert torch.equal(P, P.mT)
        machine.launch(_eigh_fn.plan_scaling(W, U, values, f, exponent, tol, None))
        assert_close(W, rule.value(values).unsqueeze(-1) * U, _UNITS)


@machines
def test_zeros_with_a_rounding_error(machine: Machine) -> None:
    values = torch.tensor([[-1e-17, 0.0, 1e-17, 1.0]], dtype=torch.float64, device=machine.device)
    ones = torch.ones(1, 4, 4, dtype=torch.float64, device=machine.device)
    for f, exponent in (("sqrt", 0.0), ("power", 0.25)):
        rule, tol = find_rule(values, f, exponent)
        P, W, cell = ones.clone(), ones.clone(), _items.create_status_cell(ones)
        machine.launch(_eigh_fn.plan_weighing(P, values, f, exponent, tol))
        assert_close(P, rule.differences(values), _UNITS)
        machine.launch(_eigh_fn.plan_scaling(W, ones, values, f, exponent, tol, cell))
        assert_close(W[..., 0], rule.value(values), _UNITS)
        assert _items.read_first_failure(cell) is None


@machines
def test_the_first_eigenvalue_outside_the_domain_is_reported(machine: Machine) -> None:
    values = torch.tensor([[1.0, 2.0], [-1.0, 2.0], [-1.0, 0.0]], dtype=torch.float64, device=machine.device)
    U = torch.ones(3, 2, 2, dtype=torch.float64, device=machine.device)
    W = torch.empty_like(U)
    for f, exponent in (("log", 0.0), ("sqrt", 0.0), ("rsqrt", 0.0), ("power", 0.3)):
        cell = _items.create_status_cell(U)
        machine.launch(_eigh_fn.plan_scaling(W, U, values, f, exponent, 1e-15, cell))
        assert _items.read_first_failure(cell) == (1, 1)


@machines
def test_symmetric_part(machine: Machine) -> None:
    A = torch.randn(2, 33, 33, dtype=torch.float64).to(machine.device)
    B = A.clone()
    machine.launch(_eigh_fn.plan_symmetrising(B))
    assert torch.equal(B, 0.5 * (A + A.mT))
