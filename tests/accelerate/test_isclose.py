"""isclose under ``accelerate()``: torch's decisions to the last bit, in layouts that torch returns."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import lapgrad
from lapgrad._kernels import cpu as _cpu

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.usefixtures("overrides_removed"),
    pytest.mark.skipif(not _cpu.is_available(), reason="the kernel is part of the compiled core"),
]


def draw_borderline(*shape: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return pairs whose distance is the tolerance up to a few roundings, and pairs with infinity and NaN."""
    torch.manual_seed(sum(shape))
    B = torch.randn(shape, dtype=dtype)
    epsilon = torch.finfo(dtype).eps * torch.randint(-2, 3, shape)
    A = B + (1e-4 + 1e-3 * B.abs()) * (1.0 + epsilon)
    special = torch.tensor([torch.inf, -torch.inf, torch.nan, torch.finfo(dtype).max, 0.0], dtype=dtype)
    for X in (A, B):
        X.view(-1)[torch.randperm(X.numel())[: X.numel() // 3]] = special[torch.randint(5, (X.numel() // 3,))]
    return A, B


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize(
    "shape", [(1, 1), (5, 7), (16, 16), (200, 130), (40, 3, 3), (2, 3, 17, 33), (3, 1, 9)]
)
def test_results_are_those_of_torch(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    A, B = draw_borderline(*shape, dtype=dtype)
    for other in (B, B.mT.contiguous().mT):
        for rtol, atol in ((1e-3, 1e-4), (0.0, 0.0), (torch.inf, 0.0), (0.0, torch.inf)):
            expected = torch.isclose(A, other, rtol, atol)
            with lapgrad.accelerate(always=True):
                actual = torch.isclose(A, other, rtol=rtol, atol=atol)
            assert torch.equal(actual, expected)
            assert actual.stride() == expected.stride()
    assert lapgrad.accelerate.stats().passed_on == 0


def test_covariances_are_compared_with_their_transposes() -> None:
    A = torch.eye(8, dtype=torch.float64).repeat(3, 1, 1).requires_grad_()
    with lapgrad.accelerate():
        # torch.compile switches the checks of arguments off for the whole process.
        torch.distributions.MultivariateNormal(torch.zeros(8, dtype=torch.float64), A, validate_args=True)
        assert torch.allclose(A, A)
        with torch.inference_mode():
            assert torch.isclose(A, A.mT).is_inference()
    taken = [entry for entry in lapgrad.accelerate.stats() if entry.operator == "isclose"]
    assert [(entry.taken, entry.calls) for entry in taken] == [(True, 3)]


def test_what_lapgrad_does_not_serve_is_left_to_torch() -> None:
    A = torch.eye(4)
    with lapgrad.accelerate(), pytest.raises(RuntimeError, match="rtol must be greater"):
        torch.isclose(A, A, rtol=-1.0)
    for first, second in (
        (A.mT[:, :2], A[:, :2]),
        (A, A[0]),
        (A[0], A[0]),
        (A[:0], A[:0]),
        (A.int(), A.int()),
    ):
        with lapgrad.accelerate():
            actual = torch.isclose(first, second, equal_nan=True)
        expected = torch.isclose(first, second, equal_nan=True)
        assert torch.equal(actual, expected)
        assert actual.stride() == expected.stride()
    assert lapgrad.accelerate.stats().taken == 0


def test_traces_show_what_torch_composes() -> None:
    A = torch.eye(4)
    expected = make_fx(torch.isclose)(A, A).code
    with lapgrad.accelerate():
        assert make_fx(torch.isclose)(A, A).code == expected
        assert torch.compile(torch.isclose, backend="aot_eager", fullgraph=True)(A, A).all()
