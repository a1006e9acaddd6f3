"""linalg.lda: against the generalised eigenproblem and scikit-style definitions, and errors."""

from __future__ import annotations

import pytest
import torch
from device import DEVICE
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import eigh
from tolerances import assert_close
from torch import Tensor
from torch.autograd import grad

import lapgrad
from lapgrad.linalg import lda

#: The scatter squares the condition number, and whitening divides by it: some hundreds for normal numbers.
WHITENED = 1e4


def draw_observations(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(DEVICE)


def compute_scatters(X: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Sw and Sb, class by class."""
    classes = int(labels.max()) + 1
    mean = X.mean(-2, keepdim=True)
    within = between = torch.zeros(X.shape[-1], X.shape[-1], dtype=X.dtype, device=DEVICE)
    for c in range(classes):
        part = X[..., labels == c, :]
        centre = part.mean(-2, keepdim=True)
        within = within + (part - centre).mT @ (part - centre)
        between = between + part.shape[-2] * (centre - mean).mT @ (centre - mean)
    return within / (X.shape[-2] - classes), between / (classes - 1)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(p=st.integers(1, 6), classes=st.integers(2, 5), extra=st.integers(0, 20), seed=st.integers(0, 1000))
def test_solves_the_generalised_eigenproblem(p: int, classes: int, extra: int, seed: int) -> None:
    n = p + classes + 2 + extra
    labels = torch.arange(n, device=DEVICE) % classes
    X = draw_observations(3, n, p, seed=seed) + labels[:, None]
    ratios, W = lda(X, labels=labels)
    k = min(p, classes - 1)
    assert ratios.shape == (3, k)
    within, between = compute_scatters(X, labels)
    identity = torch.eye(k, dtype=torch.float64, device=DEVICE).expand(3, k, k)
    assert_close(W.mT @ within @ W, identity, WHITENED)
    scale = ratios.max()
    assert_close(W.mT @ between @ W / scale, torch.diag_embed(ratios) / scale, WHITENED)
    assert (ratios.diff() <= 0).all()


def test_agrees_with_scipy() -> None:
    labels = torch.tensor([0, 1, 2, 3] * 10, device=DEVICE)
    X = draw_observations(40, 5) + 0.3 * labels[:, None] ** 2
    within, between = compute_scatters(X, labels)
    expected = eigh(between.cpu().numpy(), within.cpu().numpy(), eigvals_only=True)[::-1][:3]
    assert_close(lda(X, labels=labels).ratios, torch.tensor(expected.copy(), device=DEVICE), WHITENED)
    assert_close(
        lda(X, labels=labels.tolist(), k=2).ratios, torch.tensor(expected[:2].copy(), device=DEVICE), WHITENED
    )


def test_tensor_and_sequence_are_the_same_also_compiled() -> None:
    labels = torch.tensor([0, 1, 2] * 4, device=DEVICE)
    X = draw_observations(12, 3).requires_grad_()
    expected = lda(X, labels=labels.tolist())
    compiled = torch.compile(lambda X, y: lda(X, labels=y, classes=3), backend="aot_eager", fullgraph=True)
    for actual in (lda(X, labels=labels), lda(X, labels=labels.to(torch.int8)), compiled(X, labels)):
        assert_close(actual.ratios, expected.ratios)
        assert_close(actual.W, expected.W)
        assert_close(grad(actual.ratios.sum(), X)[0], grad(expected.ratios.sum(), X, retain_graph=True)[0])


def test_ratios_do_not_change_with_coordinates() -> None:
    labels = torch.tensor([0, 1] * 8, device=DEVICE)
    X = draw_observations(16, 3)
    mixed = X @ draw_observations(3, 3, seed=2) - 5.0
    assert_close(lda(mixed, labels=labels).ratios, lda(X, labels=labels).ratios, WHITENED)


@pytest.mark.parametrize(
    ("labels", "flags", "error", "message"),
    [
        (
            [0, 1] * 5,
            {"k": 2},
            "OptionError",
            r"k must be between 1 and min\(p, classes - 1\), which is 1, got 2",
        ),
        ([0, 1] * 5, {"regularisation": -0.5}, "OptionError", "regularisation must be a number >= 0"),
        ([0, 1] * 4, {}, "ShapeError", r"labels must have shape \(10,\), .* got \(8,\)"),
        (torch.zeros(10, 1, dtype=torch.int64, device=DEVICE), {}, "ShapeError", r"got \(10, 1\)"),
        (torch.zeros(10, device=DEVICE), {}, "DTypeError", "labels must be integers, got torch.float32"),
        ([0.0, 1.0] * 5, {}, "DTypeError", "labels must be integers"),
        ([0] * 10, {}, "OptionError", "at least 2 classes, got 1"),
        ([0, 2] * 5, {}, "OptionError", "class 1 of 3 has no rows"),
        ([0, 1] * 5, {"classes": 3}, "OptionError", "class 2 of 3 has no rows"),
        ([0, -1] * 5, {"classes": 2}, "OptionError", "labels must be between 0 and 1, got -1"),
        (
            torch.tensor([0, 5] * 5, device=DEVICE),
            {"classes": 3},
            "OptionError",
            "labels must be between 0 and 2, got 5",
        ),
        (list(range(10)), {}, "OptionError", "its rows leave 0 degrees of freedom"),
        ([0, 1, 2, 3, 4, 5, 6, 7, 7, 7], {}, "OptionError", "3 columns, and its rows leave 2"),
    ],
)
def test_refusals(labels: object, flags: dict, error: str, message: str) -> None:
    with pytest.raises(getattr(lapgrad, error), match=f"^linalg.lda: .*{message}"):
        lda(draw_observations(10, 3), labels=labels, **flags)


def test_dependent_columns_are_named() -> None:
    X = draw_observations(2, 10, 3)
    X[1, :, 2] = X[1, :, 1]
    X[1, :, 1] = 0.0
    with pytest.raises(
        lapgrad.NotPositiveDefiniteError, match=r"within classes \(batch item \(1,\)\) is sing"
    ):
        lda(X, labels=[0, 1] * 5)
    assert lda(X, labels=[0, 1] * 5, regularisation=0.1).ratios.isfinite().all()


@pytest.mark.parametrize("exponent", [-1000, -508, 508, 1000])
def test_small_and_large_data(exponent: int) -> None:
    """Ratios do not depend on the unit of the data, directions and gradients are in its reciprocal."""
    X = torch.randn(12, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(DEVICE)
    labels = [i % 3 for i in range(12)]

    def results(unit: float) -> tuple[Tensor, ...]:
        leaf = (X * unit).requires_grad_()
        ratios, W = lapgrad.linalg.lda(leaf, labels=labels)
        (gradient,) = torch.autograd.grad(ratios[0], leaf)
        return ratios.detach(), W.detach() * unit, gradient * unit

    for actual, expected in zip(results(2.0**exponent), results(1.0), strict=True):
        assert torch.equal(actual, expected)
