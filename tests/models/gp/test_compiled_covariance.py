"""Matrices of stationary kernels by the compiled core: the same as by differentiable operators."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from device import DEVICE
from tolerances import assert_all_close, assert_close
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import lapgrad
from lapgrad._kernels import cpu as _cpu
from lapgrad.models.kernels import RBF, Matern12, Matern32, Matern52
from lapgrad.models.kernels.stationary import Stationary

KERNELS = (RBF, Matern12, Matern32, Matern52)

#: Rows, columns (0: those of the rows) and dimensions, around vectors, strips of rows and blocks of columns.
SHAPES = [
    (1, 0, 1),
    (5, 0, 3),
    (33, 0, 2),
    (70, 0, 6),
    (300, 0, 4),
    (3, 1, 2),
    (40, 17, 5),
    (34, 259, 3),
    (65, 64, 48),
]

pytestmark = [
    pytest.mark.skipif(not _cpu.is_available(), reason="needs the core"),
    pytest.mark.skipif(DEVICE.type != "cpu", reason="a kernel of the CPU"),
]


def draw_points(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, dtype=torch.float64, generator=generator).to(dtype)


def compute_both(kernel: Stationary, variance: Tensor, F: Tensor, G: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the matrix of the core, and that of differentiable operators."""
    found = kernel._compute_compiled((variance,), F, G)
    assert found is not None
    return found, kernel._compute_composite(variance, F, G)


def check_values_and_gradients(kernel: Stationary, variance: Tensor, F: Tensor, G: Tensor | None) -> None:
    leaves = [X.requires_grad_() for X in (variance, F, G) if X is not None]
    found, expected = compute_both(kernel, variance, F, G)
    assert_close(found, expected)
    cotangent = draw_points(*expected.shape).to(expected)
    assert_all_close(
        torch.autograd.grad(found, leaves, cotangent), torch.autograd.grad(expected, leaves, cotangent)
    )
    if G is None:
        assert torch.equal(found, found.mT)
        assert torch.equal(found.diagonal(), variance.detach().expand(len(F)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values_and_gradients(
    kernel: type[Stationary], dtype: torch.dtype, shape: tuple[int, int, int]
) -> None:
    n, m, d = shape
    F, G = draw_points(n, d, dtype=dtype), draw_points(m, d, dtype=dtype) if m else None
    check_values_and_gradients(kernel(), torch.tensor(1.7, dtype=dtype), F, G)


@pytest.mark.parametrize("isa", _cpu.ISA_VARIANTS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_instruction_sets(kernel: type[Stationary], isa: str) -> None:
    if not _cpu.core.isa_supported(isa):
        pytest.skip(f"this CPU has no {isa}")
    before = _cpu.core.isa()
    try:
        assert _cpu.core.select_isa(isa)
        for dtype in (torch.float32, torch.float64):
            F = draw_points(37, 3, dtype=dtype)
            check_values_and_gradients(
                kernel(), torch.tensor(0.6, dtype=dtype), F, draw_points(9, 3, dtype=dtype)
            )
            check_values_and_gradients(kernel(), torch.tensor(0.6, dtype=dtype), F.detach(), None)
    finally:
        _cpu.core.select_isa(before)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_batch_has_a_variance_each(kernel: type[Stationary]) -> None:
    F, G, variance = draw_points(3, 6, 2), draw_points(3, 4, 2), torch.tensor([0.5, 1.0, 2.0])
    leaves = [X.double().requires_grad_() for X in (variance[:, None, None], F, G)]
    for columns in (leaves[2], None):
        found, expected = compute_both(kernel(), leaves[0], leaves[1], columns)
        wanted = leaves if columns is not None else leaves[:2]
        cotangent = draw_points(*expected.shape)
        assert_close(found, expected)
        assert_all_close(
            torch.autograd.grad(found, wanted, cotangent), torch.autograd.grad(expected, wanted, cotangent)
        )


@pytest.mark.parametrize("kernel", KERNELS)
def test_higher_derivatives(kernel: type[Stationary]) -> None:
    def compute(variance: Tensor, F: Tensor, G: Tensor) -> Tensor:
        found = kernel()._compute_compiled((variance,), F, G)
        assert found is not None
        return found

    leaves = (
        torch.tensor(0.6).double().requires_grad_(),
        *(draw_points(n, 2).requires_grad_() for n in (3, 4)),
    )
    assert gradcheck(compute, leaves)
    assert gradgradcheck(compute, leaves)


@pytest.mark.parametrize("symmetric", [False, True])
def test_many_cotangents_at_once(symmetric: bool) -> None:
    """Jacobians are pulled back under a vmap, whose tensors have no memory."""
    variance, F, G = torch.tensor(0.6).double(), draw_points(3, 2), draw_points(4, 2)

    def compute(F: Tensor) -> Tensor:
        found = Matern32()._compute_compiled((variance,), F, None if symmetric else G)
        assert found is not None
        return found

    expected = torch.autograd.functional.jacobian(compute, F)
    assert_close(torch.autograd.functional.jacobian(compute, F, vectorize=True), expected)
    leaf = F.clone().requires_grad_()
    K = compute(leaf)

    def pull_back(cotangent: Tensor) -> Tensor:
        return torch.autograd.grad(K, leaf, cotangent, retain_graph=True)[0]

    identity = torch.eye(K.numel(), dtype=K.dtype).view(-1, *K.shape)
    assert_close(torch.func.vmap(pull_back)(identity).view_as(expected), expected)


@pytest.mark.parametrize(
    "make",
    [torch._neg_view, lambda g: torch._efficientzerotensor(g.shape, dtype=g.dtype)],
    ids=["negated", "zero"],
)
def test_cotangents_that_are_not_what_is_stored(make: Callable[[Tensor], Tensor]) -> None:
    """Views that negate, and zeros without memory, which gradients of complex numbers bring about."""
    leaves = [draw_points(n, 2).requires_grad_() for n in (3, 4)]
    found, _ = compute_both(RBF(), torch.ones((), dtype=torch.float64), leaves[0], leaves[1])
    cotangent = make(draw_points(*found.shape))
    stored = torch.zeros(found.shape, dtype=found.dtype) + cotangent
    assert_all_close(
        torch.autograd.grad(found, leaves, cotangent, retain_graph=True),
        torch.autograd.grad(found, leaves, stored),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kernel", KERNELS)
def test_distances_from_none_to_infinite(kernel: type[Stationary], dtype: torch.dtype) -> None:
    """Values fall from 1 to 0, with finite gradients; a point that is NaN makes its row NaN."""
    farthest = torch.finfo(dtype).max ** 0.75  # its square is infinite
    points = [0.0, 0.0, 1e-160, 1e-8, 1.0, 37.0, 700.0, 1e4, farthest]
    F = torch.tensor(points, dtype=dtype)[:, None].requires_grad_()
    found = kernel()._compute_compiled((torch.ones((), dtype=dtype),), F, None)
    assert found is not None
    gradient = torch.autograd.grad(found.sum(), F)[0]
    assert bool(gradient.isfinite().all())
    row = found[0].detach()
    assert row[:3].tolist() == [1.0, 1.0, 1.0]
    assert row[7:].tolist() == [0.0, 0.0]
    assert bool((row[1:].diff() <= 0.0).all())
    broken = F.detach().clone()
    broken[4] = torch.nan
    found = kernel()._compute_compiled((torch.ones((), dtype=dtype),), broken, None)
    assert found is not None
    assert bool(found[4].isnan().all())
    assert bool(found[0, :3].isfinite().all())


def test_other_operands_are_left_to_operators() -> None:
    kernel, F = RBF(), draw_points(4, 2)
    one = torch.ones((), dtype=torch.float64)
    assert kernel._compute_compiled((one,), draw_points(4, 200), None) is None
    assert kernel._compute_compiled((one,), draw_points(3, 4, 2), F) is None
    assert kernel._compute_compiled((one.float(),), F, None) is None
    assert kernel._compute_compiled((one[None, None, None],), F, None) is None

    class Other(RBF):
        def profile(self, S: Tensor, *shape: Tensor) -> Tensor:
            return torch.exp(-S)

    assert Other()._compute_compiled((one,), F, None) is None
    assert kernel(draw_points(0, 2)).shape == (0, 0)
    assert lapgrad.models.kernels.RBF()(F, F[:0]).shape == (4, 0)
