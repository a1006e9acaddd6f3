"""RBF between two sets of points by one product: the same as by differences, and when it is not taken."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
from tolerances import HIGHER_ORDER, assert_all_close, assert_close
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from lapgrad.models.kernels import RBF, Matern32, _gaussian

DOUBLE = torch.float64


def draw_points(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(sum(shape)))


def compute_by_differences(F: Tensor, G: Tensor, variance: Tensor) -> Tensor:
    return variance * torch.exp(-0.5 * (F[..., :, None, :] - G[..., None, :, :]).square().sum(-1))


@pytest.mark.parametrize("batches", [((), ()), ((2,), (2,)), ((3, 1), (2,))], ids=str)
def test_values_and_gradients(batches: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    F, G = (draw_points(*batch, n, 3).requires_grad_() for batch, n in zip(batches, (5, 4), strict=True))
    variance = torch.tensor(1.7, dtype=DOUBLE, requires_grad=True)
    leaves = (F, G, variance)
    found, expected = _gaussian.compute_gaussian(*leaves), compute_by_differences(*leaves)
    assert_close(found, expected)
    cotangent = draw_points(*expected.shape)
    assert_all_close(
        torch.autograd.grad(found, leaves, cotangent), torch.autograd.grad(expected, leaves, cotangent)
    )
    assert_close(_gaussian.compute_gaussian(*[leaf.detach() for leaf in leaves]), expected)


@pytest.mark.parametrize("block", [1, 7, 12, 1000])
def test_backward_in_blocks(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The backward pass in blocks of one row, of several rows, with a remainder, and of all rows."""
    monkeypatch.setitem(_gaussian._BLOCK, "cpu", block)
    leaves = [draw_points(5, 3), draw_points(4, 3), torch.tensor(0.6, dtype=DOUBLE)]
    for leaf in leaves:
        leaf.requires_grad_()
    found, expected = _gaussian.compute_gaussian(*leaves), compute_by_differences(*leaves)
    cotangent = draw_points(5, 4)
    assert_all_close(
        torch.autograd.grad(found, leaves, cotangent), torch.autograd.grad(expected, leaves, cotangent)
    )


def test_higher_derivatives() -> None:
    leaves = (
        draw_points(3, 2).requires_grad_(),
        draw_points(4, 2).requires_grad_(),
        torch.tensor(0.6, dtype=DOUBLE),
    )
    leaves[2].requires_grad_()
    assert gradcheck(_gaussian.compute_gaussian, leaves)
    assert gradgradcheck(_gaussian.compute_gaussian, leaves)


@pytest.mark.parametrize("position", range(3))
def test_gradients_of_a_part(position: int) -> None:
    leaves = [draw_points(3, 2), draw_points(4, 2), torch.tensor(0.6, dtype=DOUBLE)]
    leaves[position].requires_grad_()
    found, expected = _gaussian.compute_gaussian(*leaves), compute_by_differences(*leaves)
    for_one = (leaves[position],)
    assert_all_close(torch.autograd.grad(found.sum(), for_one), torch.autograd.grad(expected.sum(), for_one))


def test_offset_costs_no_digits() -> None:
    F, G, one = draw_points(5, 2), draw_points(4, 2), torch.ones((), dtype=DOUBLE)
    # The offset is a power of two, so that the points are the same to the last bit or almost.
    moved = _gaussian.compute_gaussian(F + 2.0**20, G + 2.0**20, one)
    assert_close(moved, compute_by_differences(F + 2.0**20, G + 2.0**20, one), HIGHER_ORDER)


def test_when_it_is_taken() -> None:
    F, G, one = draw_points(5, 2), draw_points(4, 2), torch.ones((), dtype=DOUBLE)
    assert _gaussian.is_precise(F, G, one)
    assert not _gaussian.is_precise(1e4 * F, G, one)
    assert not _gaussian.is_precise(F * torch.nan, G, one)
    assert not _gaussian.is_precise(F[:0], G, one)
    assert not _gaussian.is_precise(F.float(), G.float(), one.float())
    assert torch.func.vmap(lambda f: torch.tensor(_gaussian.is_precise(f, G, one)))(F[None]).item() is False
    far = RBF()(1e6 * F, 1e6 * F[:3])
    assert_close(far.detach(), torch.eye(5, 3, dtype=DOUBLE))


def test_a_chunk_is_the_kernel() -> None:
    kernel = RBF(torch.tensor([0.5, 2.0], dtype=DOUBLE)) + RBF(variance=3.0) * RBF(active_dims=[1])
    X, Z = draw_points(5, 2), draw_points(4, 2)
    assert_close(kernel.evaluate_chunk(X, Z), kernel(X, Z))
    assert torch.equal(kernel.evaluate_chunk(X, None), kernel(X))


def test_points_are_checked_once() -> None:
    """With shortcuts nothing is read from the points, because reading from a GPU waits for it."""
    X, Z = torch.randn(30, 2, dtype=torch.float64), torch.randn(5, 2, dtype=torch.float64)
    kernel = RBF(0.5) + RBF(2.0, active_dims=[1]) * Matern32()
    expected, symmetric = kernel(Z, X), kernel(Z)
    shortcuts, flag = kernel.find_shortcuts(Z, X)
    assert flag is None
    with mock.patch.object(_gaussian, "are_points_near", side_effect=AssertionError):
        assert torch.equal(kernel.evaluate_chunk(Z, X, shortcuts), expected)
        assert_close(kernel.evaluate_chunk(Z, X[3:9], shortcuts), expected[:, 3:9])
        assert torch.equal(kernel.evaluate_chunk(Z, None, shortcuts), symmetric)
    assert not kernel.find_shortcuts(1e3 * Z, X)[0], "far from each other: there is no shortcut"


def test_a_subclass_with_its_own_matrix_has_no_shortcut() -> None:
    class Twice(RBF):
        def matrix(self, *arguments: Any) -> torch.Tensor:
            return 2.0 * super().matrix(*arguments)

    X, Z = draw_points(5, 2), draw_points(4, 2)
    for kernel in (Twice(), Twice() + RBF()):
        shortcuts, _ = kernel.find_shortcuts(X, Z)
        assert_close(kernel.evaluate_chunk(X, Z, shortcuts), kernel(X, Z))
