"""Behaviour of torch that its samples do not cover: failures, partial results, NaN, degenerate spectra."""

from __future__ import annotations

import subprocess
import sys
import warnings
from typing import Any

import pytest
import torch
from tolerances import HIGHER_ORDER, assert_all_close, assert_close
from torch import Tensor
from torch_samples import accelerate_everything

import lapgrad
from lapgrad.accelerate.statistics import Counts, summarise

pytestmark = [pytest.mark.cpu, pytest.mark.usefixtures("overrides_removed")]


def positive_definite(*shape: int) -> Tensor:
    torch.manual_seed(sum(shape))
    A = torch.randn(*shape, shape[-1], dtype=torch.float64)
    return A @ A.mT + torch.eye(shape[-1], dtype=torch.float64)


def get_outcome(function: Any) -> Any:
    """Return the results of a call, or the type and text of its exception."""
    try:
        return function()
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("n", [3, 8, 40])
@pytest.mark.parametrize("upper", [False, True])
def test_partial_factors_and_status(n: int, upper: bool) -> None:
    A = positive_definite(4, n)
    A[1, 2, 2] = -1.0
    A[3] = torch.nan
    for matrices in (A, A[1], A[3]):
        expected = torch.linalg.cholesky_ex(matrices, upper=upper)
        with accelerate_everything():
            actual = torch.linalg.cholesky_ex(matrices, upper=upper)
        assert torch.equal(actual.info, expected.info)
        torch.testing.assert_close(actual.L, expected.L, equal_nan=True)


@pytest.mark.parametrize("call", ["linalg.cholesky", "linalg.inv", "cholesky"])
@pytest.mark.filterwarnings("ignore:.*deprecated.*:UserWarning")
def test_errors(call: str) -> None:
    function: Any = torch
    for part in call.split("."):
        function = getattr(function, part)
    A = positive_definite(3, 4)
    A[2] = 0.0
    for matrices in (A, A[2]):
        expected = get_outcome(lambda matrices=matrices: function(matrices))
        with accelerate_everything():
            actual = get_outcome(lambda matrices=matrices: function(matrices))
        assert actual == expected
        assert actual[0] is torch.linalg.LinAlgError


def test_check_errors() -> None:
    A = -positive_definite(3, 4)
    for function in (torch.linalg.cholesky_ex,):
        expected = get_outcome(lambda function=function: function(A, check_errors=True))
        with accelerate_everything():
            assert get_outcome(lambda function=function: function(A, check_errors=True)) == expected


def test_failed_items_have_gradient_zero_and_do_not_disturb_the_others() -> None:
    A = positive_definite(3, 5)
    A[1] = -A[1]
    A.requires_grad_()
    with accelerate_everything():
        L, info = torch.linalg.cholesky_ex(A)
    (gA,) = torch.autograd.grad(L.sum(), A)
    assert info.tolist() == [0, 1, 0]
    assert_close(gA[1], torch.zeros(5, 5, dtype=torch.float64))
    good = A.detach()[[0, 2]].requires_grad_()
    (expected,) = torch.autograd.grad(torch.linalg.cholesky(good).sum(), good)
    assert_close(gA[[0, 2]], expected)


def test_nan_in_a_symmetric_matrix() -> None:
    A = positive_definite(2, 5)
    A[1, 0, 0] = torch.nan
    expected = get_outcome(lambda: torch.linalg.eigvalsh(A))
    with accelerate_everything():
        actual = get_outcome(lambda: torch.linalg.eigvalsh(A))
    if isinstance(expected, Tensor):
        torch.testing.assert_close(actual, expected, equal_nan=True)
    else:
        assert actual == expected


@pytest.mark.parametrize("left", [True, False])
def test_singular_triangle(left: bool) -> None:
    L = torch.linalg.cholesky(positive_definite(2, 4)).contiguous()
    L[1, 2, 2] = 0.0
    L.requires_grad_()
    B = torch.ones(2, 4, 4, dtype=torch.float64, requires_grad=True)
    results = []
    for accelerated in (False, True):
        with accelerate_everything() if accelerated else lapgrad.accelerate.off():
            X = torch.linalg.solve_triangular(L, B, upper=False, left=left)
            results.append((X.detach(), *torch.autograd.grad(X[0].sum(), (L, B))))
    torch.testing.assert_close(results[0][0], results[1][0], equal_nan=True)
    assert results[1][0].isinf().any()
    for of_torch, of_lapgrad in zip(results[0][1:], results[1][1:], strict=True):
        assert_close(of_lapgrad[0], of_torch[0])


@pytest.mark.parametrize("shape", [(40, 40), (1, 40, 40), (3, 40, 40)])
@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("left", [True, False])
def test_few_right_hand_sides(shape: tuple[int, ...], upper: bool, left: bool) -> None:
    """Above order 32 torch computes the solution, and lapgrad its first and second derivatives."""
    L = torch.linalg.cholesky(positive_definite(*shape[:-1]), upper=upper).requires_grad_()
    B = torch.randn(2, dtype=torch.float64)[:, None].expand(*shape[:-2], 2, 40)
    B = (B.mT if left else B).clone().requires_grad_()
    results = []
    for accelerated in (False, True):
        with accelerate_everything() if accelerated else lapgrad.accelerate.off():
            X = torch.linalg.solve_triangular(L, B, upper=upper, left=left)
            first = torch.autograd.grad(X.square().sum(), (L, B), create_graph=True)
            second = torch.autograd.grad(sum(g.square().sum() for g in first), (L, B))
        results.append(([X], first, second, X.stride()))
    assert results[0][3] == results[1][3]
    for part in range(3):
        assert_all_close(
            [x.detach() for x in results[1][part]], [x.detach() for x in results[0][part]], HIGHER_ORDER
        )


@pytest.mark.parametrize("decomposition", ["eigh", "svd"])
def test_equal_eigenvalues_have_finite_gradients_without_a_warning(decomposition: str) -> None:
    A = torch.eye(6, dtype=torch.float64).expand(2, 6, 6).clone().requires_grad_()
    with accelerate_everything(), warnings.catch_warnings():
        warnings.simplefilter("error")
        vectors = getattr(torch.linalg, decomposition)(A)[0 if decomposition == "svd" else 1]
        (gA,) = torch.autograd.grad(vectors.sum(), A)
    assert gA.isfinite().all()


def test_rank_deficient_qr_does_not_raise_in_backward() -> None:
    """The gradient does not exist: it is not finite, or as large as the reciprocal of a rounding error."""
    A = torch.ones(5, 3, dtype=torch.float64, requires_grad=True)
    with accelerate_everything():
        Q, R = torch.linalg.qr(A)
        (gA,) = torch.autograd.grad(Q.sum() + R.sum(), A)
    assert not (gA.abs() < 1e10).all()


def test_gradients_in_the_other_triangle_are_those_of_torch() -> None:
    L = torch.linalg.cholesky(positive_definite(3, 5)).requires_grad_()
    B = torch.ones(3, 5, 2, dtype=torch.float64, requires_grad=True)
    for function in (lambda: torch.cholesky_solve(B, L), lambda: torch.cholesky_inverse(L) + 0.0 * B.sum()):
        gradients = []
        for accelerated in (False, True):
            with accelerate_everything() if accelerated else lapgrad.accelerate.off():
                gradients.append(torch.autograd.grad(function().square().sum(), (L, B)))
        assert_all_close(gradients[1], gradients[0], HIGHER_ORDER)
        assert gradients[1][0].triu(1).abs().max() > 0


def test_sign_requires_grad() -> None:
    A = positive_definite(3, 5).requires_grad_()
    with accelerate_everything():
        assert torch.linalg.slogdet(A).sign.requires_grad


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_other_dtypes_are_left_to_torch(dtype: torch.dtype) -> None:
    A = torch.eye(50, dtype=dtype).expand(20, 50, 50)
    with accelerate_everything():
        torch.linalg.cholesky(A)
    (entry,) = lapgrad.accelerate.stats()
    assert (entry.taken, entry.reason, entry.dtype) == (False, "dtype", dtype)


def test_meta_tensors() -> None:
    A = torch.empty(3, 4, 4, device="meta")
    with accelerate_everything():
        assert torch.linalg.cholesky(A).shape == A.shape
    assert not lapgrad.accelerate.stats()


def test_subclasses_keep_their_type() -> None:
    class Tagged(Tensor):
        pass

    A = positive_definite(3, 5).as_subclass(Tagged)
    with accelerate_everything():
        assert type(torch.linalg.cholesky(A)) is Tagged


def test_distributions() -> None:
    covariance = positive_definite(30, 8).requires_grad_()
    x = torch.ones(8, dtype=torch.float64)
    gradients = []
    for accelerated in (False, True):
        with accelerate_everything() if accelerated else lapgrad.accelerate.off():
            density = torch.distributions.MultivariateNormal(torch.zeros_like(x), covariance).log_prob(x)
            gradients.append((density.detach(), *torch.autograd.grad(density.sum(), covariance)))
    assert_all_close(gradients[1], gradients[0], HIGHER_ORDER)


def test_small_matrices_are_left_to_torch() -> None:
    A = positive_definite(4)
    with lapgrad.accelerate():
        torch.linalg.cholesky(A)
        torch.linalg.eigh(A.requires_grad_())
    assert lapgrad.accelerate.stats().taken == 0
    assert {entry.reason for entry in lapgrad.accelerate.stats()} == {"faster in torch"}


def test_statistics() -> None:
    A = positive_definite(4, 3)
    with accelerate_everything():
        for _ in range(3):
            torch.linalg.cholesky(A)
        torch.linalg.cholesky(A.to(torch.complex64))
    found = lapgrad.accelerate.stats()
    assert (found.taken, found.passed_on) == (3, 1)
    assert found[0] == ("linalg_cholesky_ex", True, "taken", "cpu", torch.float64, (4, 3, 3), 3)
    assert "3  " in str(found)
    assert "torch: dtype" in str(found)
    assert str(found).endswith("3 calls by lapgrad, 1 by torch")
    assert lapgrad.accelerate.stats(reset=True) == found
    assert not lapgrad.accelerate.stats()


def test_statistics_of_many_shapes_do_not_grow() -> None:
    counts = Counts()
    for n in range(25_000):
        counts.cell("linalg_qr", "taken", "cpu", torch.float64, (n, n))[0] += 1
    assert len(counts.items()) <= 10_001
    assert summarise(counts).taken == 25_000
    counts.clear()
    assert not summarise(counts)


def test_calls_that_are_passed_on_are_counted_each_time() -> None:
    A, B = positive_definite(4), torch.ones(4, 1, dtype=torch.float64)
    with lapgrad.accelerate():
        for _ in range(5):
            torch.linalg.cholesky(A)
            torch.linalg.solve_triangular(A, B, upper=False)
            torch.linalg.eigh(A.clone().requires_grad_())
    found = {entry.operator: entry.calls for entry in lapgrad.accelerate.stats()}
    assert found == {"linalg_cholesky_ex": 5, "linalg_solve_triangular": 5, "_linalg_eigh": 5}
    with accelerate_everything():
        torch.linalg.cholesky(A)
    assert lapgrad.accelerate.stats().taken == 1


ON_SEVERAL_THREADS = """
import sys, torch, lapgrad
torch.set_num_threads(int(sys.argv[1]))
lapgrad.accelerate()
torch.manual_seed(0)
A = torch.randn(3, 150, 150, dtype=torch.float64) / 150**0.5 + 2 * torch.eye(150, dtype=torch.float64)
A.requires_grad_()
I = torch.eye(150, dtype=torch.float64).expand(3, 150, 150)
for _ in range(20):
    for name, of_inverse in (("inv", lambda X: X), ("solve", lambda X: X)):
        X = getattr(torch.linalg, name)(A, *([I] if name == "solve" else []))
        torch.testing.assert_close(A @ X, I)
        (gA,) = torch.autograd.grad(X.sum(), A)
        torch.testing.assert_close(gA, -(X.mT @ torch.ones_like(X) @ X.mT).detach())
    sign, logarithm = getattr(torch.linalg, "slogdet")(A)
    d = getattr(torch.linalg, "det")(A)
    torch.testing.assert_close(d.log(), logarithm)
    torch.testing.assert_close(torch.autograd.grad(d.log().sum(), A)[0], X.detach().mT)
    LU, pivots = getattr(torch.linalg, "lu_factor")(A)
    torch.testing.assert_close(torch.linalg.lu_solve(LU, pivots, I), X)
print("right")
"""


@pytest.mark.parametrize("threads", [2, 4])
def test_factorisations_of_batches_are_right_on_several_threads(threads: int) -> None:
    """torch's own factorisations may hang or be wrong with several threads."""
    done = subprocess.run(
        [sys.executable, "-c", ON_SEVERAL_THREADS, str(threads)],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.stdout.strip() == "right", done.stderr


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
@pytest.mark.parametrize("n", [3, 200])
@pytest.mark.parametrize(
    "call", ["cholesky", "eigh", "eigvalsh", "svd", "svdvals", "qr", "inv", "det", "solve_triangular"]
)
@pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta state:UserWarning")
def test_sparse_matrices_are_left_to_torch(call: str, n: int, layout: torch.layout) -> None:
    A = torch.eye(n, dtype=torch.float64).to_sparse(layout=layout)
    function = getattr(torch.linalg, call)

    def compute() -> Any:
        return function(A, A, upper=False) if call == "solve_triangular" else function(A)

    expected = get_outcome(compute)
    for scope in (lapgrad.accelerate(), accelerate_everything()):
        with scope:
            assert get_outcome(compute) == expected
    assert lapgrad.accelerate.stats().taken == 0


@pytest.mark.parametrize("n", [3, 40, 100])
@pytest.mark.parametrize("gradient", [False, True])
def test_negated_views(n: int, gradient: bool) -> None:
    """torch calls the kernel of ``solve_triangular``, and of no other operator here, with negated views."""
    A = positive_definite(n).tril()
    Z = torch.complex(torch.randn(n, 6, dtype=torch.float64), torch.randn(n, 6, dtype=torch.float64))
    minus_A, side, minus_side = torch._neg_view(A), Z.imag, Z.conj().imag
    assert minus_side.is_neg()
    for operands in ((A, minus_side), (minus_A, side), (minus_A, minus_side)):
        leaves = [operand.detach().requires_grad_(gradient) for operand in operands]
        expected = torch.linalg.solve_triangular(*leaves, upper=False)
        with accelerate_everything():
            actual = torch.linalg.solve_triangular(*leaves, upper=False)
        assert_close(actual, expected)
        if gradient:
            assert_all_close(*(torch.autograd.grad(X.sum(), leaves) for X in (actual, expected)))
