"""Vectors as right-hand sides, and tensors that are not dense, or no tensors at all."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from device import DEVICE
from tolerances import assert_close
from torch import Tensor

import lapgrad
from lapgrad.models import GPRegression, gp_nll
from lapgrad.models.kernels import RBF


def well_conditioned(n: int = 5) -> Tensor:
    L = torch.randn(n, n, dtype=torch.float64).tril() + n * torch.eye(n, dtype=torch.float64)
    return L.to(DEVICE)


#: Functions of a matrix and a right-hand side, and the dimension that a vector lacks.
SOLVES: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], int]] = {
    "trsm": (lapgrad.trsm, 1),
    "trsm transposed": (lambda L, b: lapgrad.trsm(L, b, transpose=True, alpha=2.0), 1),
    "trsm on the right": (lambda L, b: lapgrad.trsm(L, b, rightside=True), 0),
    "trmm": (lapgrad.trmm, 1),
    "cho_solve": (lapgrad.linalg.cho_solve, 1),
    "solve_psd": (lambda L, b: lapgrad.linalg.solve_psd(L @ L.mT, b), 1),
    "lstsq": (lapgrad.linalg.lstsq, 1),
    "gesv": (lapgrad.gesv, 1),
}


@pytest.mark.parametrize("name", SOLVES)
def test_a_vector_is_a_matrix_of_one_column(name: str) -> None:
    solve, dim = SOLVES[name]
    L, b = well_conditioned(), torch.randn(5, dtype=torch.float64, device=DEVICE)
    expected = solve(L, b.unsqueeze(dim)).squeeze(dim)
    assert_close(solve(L, b), expected)
    assert_close(
        torch.func.vmap(solve, (None, 0))(L, torch.stack([b, 2.0 * b])),
        torch.stack([expected, 2.0 * expected]),
    )
    assert torch.autograd.gradcheck(solve, (L.requires_grad_(), b.requires_grad_()), fast_mode=True)
    with pytest.raises(lapgrad.ShapeError, match="or a vector with the 5 rows of"):
        solve(L, b[:4])


def test_a_batch_of_matrices_and_one_vector() -> None:
    L, b = (
        torch.stack([well_conditioned(), well_conditioned()]),
        torch.randn(5, dtype=torch.float64, device=DEVICE),
    )
    assert_close(lapgrad.trsm(L, b), torch.stack([lapgrad.trsm(item, b) for item in L]))
    assert_close(
        lapgrad.linalg.cho_solve(L, b), torch.stack([lapgrad.linalg.cho_solve(item, b) for item in L])
    )


def test_a_vector_is_overwritten() -> None:
    L, b = well_conditioned(), torch.randn(5, dtype=torch.float64, device=DEVICE)
    expected, target = lapgrad.trsm(L, b), b.clone()
    assert lapgrad.trsm(L, target, overwrite=True) is target
    assert_close(target, expected)
    grown = b.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda b: lapgrad.trsm(L, 1.0 * b, overwrite=True), (grown,))


def test_one_draw_may_be_a_vector() -> None:
    A, y = torch.eye(3, device=DEVICE), torch.ones(3, device=DEVICE)
    assert_close(lapgrad.fused.mvn_nll(A, y), lapgrad.fused.mvn_nll(A, y[:, None]))
    assert lapgrad.fused.mvn_nll(A.expand(2, 3, 3), y).shape == (2,)
    with pytest.raises(lapgrad.ShapeError, match="vector with the 3 rows of A"):
        lapgrad.fused.mvn_nll(A, y[:2])


CALLS: dict[str, Callable[[Tensor], object]] = {
    "potrf": lapgrad.potrf,
    "trsm": lambda A: lapgrad.trsm(torch.eye(3, device=DEVICE), A),
    "syevd": lapgrad.syevd,
    "mvn_nll": lambda A: lapgrad.fused.mvn_nll(A, torch.ones(3, 1, device=DEVICE)),
    "gp_nll": lambda A: gp_nll(A, torch.ones(3, device=DEVICE), 1.0),
    "RBF": lambda A: RBF()(A),
    "GPRegression": lambda A: GPRegression(A, torch.ones(3, device=DEVICE)),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
@pytest.mark.parametrize("name", CALLS)
def test_sparse_tensors_are_refused_in_a_sentence(name: str, layout: torch.layout) -> None:
    with pytest.raises(
        lapgrad.DTypeError, match=rf"{name}: (\w) has the layout {layout}; dense .* use \1\.to_dense\(\)"
    ):
        CALLS[name](torch.eye(3, device=DEVICE).to_sparse(layout=layout))


@pytest.mark.parametrize("name", CALLS)
def test_what_is_no_tensor_is_named(name: str) -> None:
    values: list[object] = [None, {1.0}]
    if name != "GPRegression":  # models take arrays and lists
        values += [torch.eye(3).numpy(), [[1.0]]]
    for value in values:
        with pytest.raises(lapgrad.DTypeError, match=rf"{name}: . must be a torch.Tensor, got"):
            CALLS[name](value)  # type: ignore[arg-type]


def test_meta_tensors_have_shapes_but_no_values() -> None:
    """Operators compute shapes; models need values."""
    A = torch.eye(3, device="meta")
    assert lapgrad.potrf(A).is_meta
    assert lapgrad.potrf(A).shape == (3, 3)
    with pytest.raises(lapgrad.DeviceError, match="GPRegression: X is on the device meta"):
        GPRegression(A, A[0])
