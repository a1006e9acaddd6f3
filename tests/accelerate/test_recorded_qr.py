"""The QR factorisation of eager calls under ``accelerate()``: values, layouts and gradients are torch's."""

from __future__ import annotations

import pytest
import torch
from tolerances import assert_all_close
from torch import Tensor

import lapgrad
from lapgrad._kernels.table import is_core_in_use
from lapgrad._translation import qr

pytestmark = [pytest.mark.cpu, pytest.mark.usefixtures("overrides_removed")]


def draw(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Matrices whose leading square block has condition numbers of at most 3 or so."""
    torch.manual_seed(sum(shape))
    A = 0.3 * torch.randn(shape, dtype=dtype) / max(shape[-2:]) ** 0.5
    A.diagonal(dim1=-2, dim2=-1).add_(1.0)
    return A


SHAPES = [(1, 1), (4, 4), (5, 1), (1, 5), (7, 3), (3, 7), (33, 20)]
SHAPES += [(3, 4, 4), (1, 6, 2), (40, 3, 5), (2, 3, 5, 4)]


def evaluate(A: Tensor, used: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return the factors, and the gradient of a sum over the factors named in ``used``."""
    Q, R = torch.linalg.qr(A)
    parts = [part for name, part in (("Q", Q), ("R", R)) if name in used]
    losses = [(part * torch.linspace(-1, 2, part.numel()).view(part.shape)).sum() for part in parts]
    return Q, R, torch.autograd.grad(torch.stack(losses).sum(), A)[0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("used", ["QR", "Q", "R"])
@pytest.mark.parametrize("by_columns", [False, True], ids=["rows", "columns"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values_and_gradients(
    shape: tuple[int, ...], by_columns: bool, used: str, dtype: torch.dtype
) -> None:
    A = draw(*shape, dtype=dtype)
    A = (A.mT.contiguous().mT if by_columns else A).requires_grad_()
    expected = evaluate(A, used)
    with lapgrad.accelerate():
        actual = evaluate(A, used)
    assert_all_close(actual, expected)
    for ours, torchs in zip(actual[:2], expected[:2], strict=True):
        assert ours.stride() == torchs.stride()
        assert not ours._is_view()
    assert lapgrad.accelerate.stats().passed_on == 0


def test_second_derivatives() -> None:
    A = draw(4, 3).requires_grad_()
    with lapgrad.accelerate():
        assert torch.autograd.gradcheck(torch.linalg.qr, A)
        assert torch.autograd.gradgradcheck(torch.linalg.qr, A)


@pytest.mark.skipif(not is_core_in_use(), reason="needs the core")
def test_the_core_pulls_cotangents_of_sums_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are one number each, expanded: the core, which needs memory for every entry, takes copies."""

    def differentiate_sums() -> tuple[Tensor, ...]:
        Q, R = torch.linalg.qr(A)
        return torch.autograd.grad(Q.sum() + R.sum(), A)

    A = draw(5, 3).requires_grad_()
    expected = differentiate_sums()
    monkeypatch.setattr(qr, "operator_vjp", None)
    with lapgrad.accelerate():
        assert_all_close(differentiate_sums(), expected)


def test_what_lapgrad_refuses_is_torchs() -> None:
    A = draw(3, 3).requires_grad_()
    with lapgrad.accelerate():
        Q, R = torch.linalg.qr(A * torch.nan)
        assert Q.isnan().all()
        assert R.isnan().any()
        with pytest.raises(RuntimeError, match="mode='r'"):
            torch.linalg.qr(A, mode="r")[1].sum().backward()
