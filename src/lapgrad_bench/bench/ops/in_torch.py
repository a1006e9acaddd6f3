"""The operators as a user of torch writes them: lapgrad is timed against these functions."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor


def multiply_triangular(L: Tensor, A: Tensor) -> Tensor:
    # One large triangle is multiplied as it is: masking it would only slow torch down. In batches of small
    # matrices the upper triangle is masked, as in a parametrisation by an unconstrained matrix.
    return L @ A if L.ndim == 2 else L.tril() @ A


def sum_log_diagonal(A: Tensor) -> Tensor:
    return A.diagonal(dim1=-2, dim2=-1).abs().log().sum(-1)


@functools.lru_cache(maxsize=8)
def _list_lower_indices(n: int, device: torch.device) -> tuple[Tensor, Tensor]:
    rows, columns = torch.tril_indices(n, n, device=device)
    return rows, columns


def pack_triangle(A: Tensor) -> Tensor:
    rows, columns = _list_lower_indices(A.shape[-1], A.device)
    return A[..., rows, columns]


def unpack_triangle(v: Tensor) -> Tensor:
    n = (math.isqrt(8 * v.shape[-1] + 1) - 1) // 2
    rows, columns = _list_lower_indices(n, v.device)
    A = v.new_zeros(*v.shape[:-1], n, n)
    A[..., rows, columns] = v
    return A


def decompose_symmetric(A: Tensor) -> tuple[Tensor, Tensor]:
    eigenvalues, V = torch.linalg.eigh(A)
    return V.mT, eigenvalues


def take_matrix_root(A: Tensor) -> Tensor:
    eigenvalues, V = torch.linalg.eigh(A)
    return (V * eigenvalues.sqrt().unsqueeze(-2)) @ V.mT


def find_components(X: Tensor) -> tuple[Tensor, Tensor]:
    centred = X - X.mean(-2, keepdim=True)
    eigenvalues, V = torch.linalg.eigh(centred.mT @ centred / (X.shape[-2] - 1))
    return V[..., -COMPONENTS:].flip(-1).mT, eigenvalues[..., -COMPONENTS:].flip(-1)


COMPONENTS = 3


def factorise_pivoted(A: Tensor) -> Tensor:
    """Return the Cholesky factor with pivoting, (*batch, n, n): pivots one by one, then a factorisation."""
    n = A.shape[-1]
    with torch.no_grad():
        order = torch.arange(n, device=A.device).expand(A.shape[:-1]).contiguous()
        left = A.diagonal(dim1=-2, dim2=-1).clone()
        columns = A.new_zeros(A.shape)
        for k in range(n):
            place = left.gather(-1, order)[..., k:].argmax(-1, keepdim=True) + k
            pivot, first = order.gather(-1, place), order[..., k : k + 1].clone()
            order.scatter_(-1, place, first)
            order[..., k : k + 1] = pivot
            row = columns.gather(-2, pivot.unsqueeze(-1).expand(*pivot.shape, n))[..., :k]
            column = A.gather(-2, pivot.unsqueeze(-1).expand(*pivot.shape, n)).squeeze(-2)
            column = column - (columns[..., :k] @ row.mT).squeeze(-1)
            column = column / left.gather(-1, pivot).sqrt()
            columns[..., k] = column
            left -= column.square()
    rows = A.gather(-2, order.unsqueeze(-1).expand_as(A))
    return torch.linalg.cholesky(rows.gather(-1, order.unsqueeze(-2).expand_as(A)))


def multiply_and_add(A: Tensor, B: Tensor, C: Tensor) -> Tensor:
    return torch.addmm(C, A, B) if A.ndim == 2 else C + A @ B


def compute_logdet_by_cholesky(A: Tensor) -> Tensor:
    """Return log det A by a Cholesky factorisation; its backward pass is slower than that of torch.logdet."""
    return 2.0 * torch.linalg.cholesky(A).diagonal(dim1=-2, dim2=-1).log().sum(-1)


def compute_normal_nll(A: Tensor, y: Tensor) -> Tensor:
    # torch.distributions.MultivariateNormal computes it in this way; with cholesky_solve it takes longer.
    L = torch.linalg.cholesky(A)
    whitened = torch.linalg.solve_triangular(L, y, upper=False)
    half_logdet = L.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    constant = 0.5 * math.log(2.0 * math.pi) * y.shape[-2]
    return 0.5 * whitened.square().sum((-2, -1)) + half_logdet + constant


def filter_series(y: Tensor, A: Tensor, B: Tensor, Q: Tensor, R: Tensor, m: Tensor, P: Tensor) -> Tensor:
    # The filter of the paper, step by step. The paper's K R K means K R Kᵀ.
    times, p = y.shape[-2:]
    identity = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
    s: Tensor = y.new_zeros(y.shape[:-2])
    m, P = m[..., None].expand(*y.shape[:-2], -1, 1), P.expand(*y.shape[:-2], -1, -1)
    for t in range(times):
        if t:
            m, P = A @ m, A @ P @ A.mT + Q
        PB = P @ B.mT
        L = torch.linalg.cholesky(B @ PB + R)
        K = torch.linalg.solve_triangular(
            L, torch.linalg.solve_triangular(L.mT, PB, upper=True, left=False), upper=False, left=False
        )
        v = y[..., t, :, None] - B @ m
        z = torch.linalg.solve_triangular(L, v, upper=False)
        half_logdet = L.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        s = s + 0.5 * z.square().sum((-2, -1)) + half_logdet + 0.5 * math.log(2.0 * math.pi) * p
        m, J = m + K @ v, identity - K @ B
        P = J @ P @ J.mT + K @ R @ K.mT
    return s


def decompose_singular_values(A: Tensor) -> tuple[Tensor, ...]:
    # lapgrad returns vectors in rows; the transposed view costs nothing.
    columns, S, V = torch.linalg.svd(A, full_matrices=False)
    return columns.mT, S, V


def factorise_lq_by_qr(A: Tensor) -> tuple[Tensor, Tensor]:
    Q, R = torch.linalg.qr(A.mT)
    return Q.mT, R.mT


def _compute_covariance(X: Tensor, Y: Tensor) -> Tensor:
    return (X - X.mean(-2, keepdim=True)).mT @ (Y - Y.mean(-2, keepdim=True)) / (X.shape[-2] - 1)


def find_canonical_correlations(X: Tensor, Y: Tensor) -> Tensor:
    Lx, Ly = (torch.linalg.cholesky(_compute_covariance(Z, Z)) for Z in (X, Y))
    half = torch.linalg.solve_triangular(Lx, _compute_covariance(X, Y), upper=False)
    return torch.linalg.svdvals(torch.linalg.solve_triangular(Ly, half.mT, upper=False))


CLASSES = 4


def assign_classes(X: Tensor) -> Tensor:
    return torch.arange(X.shape[-2], device=X.device) % CLASSES


def find_discriminant_ratios(X: Tensor) -> Tensor:
    member = torch.nn.functional.one_hot(assign_classes(X), CLASSES).to(X.dtype)
    sizes = member.sum(0)
    means = (member / sizes).mT @ X
    within = X - member @ means
    L = torch.linalg.cholesky(within.mT @ within / (X.shape[-2] - CLASSES))
    between = (means - X.mean(-2, keepdim=True)) * (sizes / (CLASSES - 1)).sqrt()[:, None]
    whitened = torch.linalg.solve_triangular(L, between.mT, upper=False)
    ratios = torch.linalg.eigvalsh(whitened.mT @ whitened).flip(-1)
    return ratios[..., : min(X.shape[-1], CLASSES - 1)]
