"""Matrices for singular value decompositions, and checks of the results."""

from __future__ import annotations

import tolerances
import torch
from torch import Tensor

from lapgrad._formulas.gaps import fix_signs


def draw_normal(items: int, m: int, n: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(
        items, m, n, dtype=torch.float64, generator=torch.Generator().manual_seed(m + 100 * n)
    ).to(dtype)


def check(A: Tensor, S: Tensor, U: Tensor | None, V: Tensor | None) -> None:
    """Check that rows are orthonormal, values right and descending, U^T diag(S) V = A, and the sign rule."""
    assert U is not None
    assert V is not None
    side, eps = max(A.shape[-2:]), torch.finfo(A.dtype).eps
    size = A.double().abs().amax((-2, -1), keepdim=True).clamp_min(1e-320)
    exact, values, allowed = A.double() / size, S.double() / size[..., 0], tolerances.SPECTRAL * side * eps
    for rows in (U.double(), V.double()):
        identity = torch.eye(rows.shape[-2], dtype=torch.float64)
        assert float((rows @ rows.mT - identity).abs().max()) <= allowed
    assert float((U.double().mT @ (values[..., None] * V.double()) - exact).abs().max()) <= allowed
    assert (S.diff(dim=-1) <= 0).all()
    assert (S >= 0).all()
    assert float((torch.linalg.svdvals(exact) - values).abs().max()) <= allowed
    signed = U.clone()
    fix_signs(signed)
    assert torch.equal(signed, U)


def list_hard_cases(m: int, n: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """Matrices of one shape on which something may go wrong."""
    k = min(m, n)
    A, deep = draw_normal(1, m, n)[0], -30 if dtype == torch.float64 else -12
    U, _, V = torch.linalg.svd(A, full_matrices=False)
    huge, tiny = (1e300, 1e-300) if dtype == torch.float64 else (1e37, 1e-36)
    grade = torch.logspace(0, deep, k, dtype=torch.float64)
    rank_two = A[:, :2] @ A[:2]
    cases = {
        "zero": torch.zeros(m, n),
        "identity": torch.eye(m, n),
        "ones": torch.ones(m, n),
        "one entry": torch.zeros(m, n).index_put((torch.tensor(m - 1), torch.tensor(0)), torch.tensor(-3.0)),
        "rank two": rank_two,
        "equal values": U @ V,
        "graded values": U @ torch.diag(grade) @ V,
        "graded rows": torch.logspace(0, deep, m, dtype=torch.float64)[:, None] * A,
        "graded columns": A * torch.logspace(deep, 0, n, dtype=torch.float64),
        "zero row": A.index_fill(0, torch.tensor(1), 0.0),
        "zero column": A.index_fill(1, torch.tensor(n - 1), 0.0),
        "huge": A * huge / 4,
        "tiny": A * tiny,
        "least": A * torch.finfo(dtype).smallest_normal * 4,
    }
    return {name: case.to(dtype) for name, case in cases.items()}
