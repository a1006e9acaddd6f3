"""The operators, as a user of another library writes them, in terms of what it offers (`la`).

The same mathematics as `in_torch.py`. An operator that libraries offer under its own name (`linalg.lstsq` is
`la.lstsq`) needs no formula. A library that does not offer something has no such method, or raises
NotImplementedError.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

COMPONENTS, CLASSES = 3, 4  # as in in_torch.py


def trmm(la: Any, L: Any, A: Any) -> Any:
    return L @ A if len(L.shape) == 2 else la.tril(L) @ A


def syevd(la: Any, A: Any) -> Any:
    eigenvalues, V = la.eigh(A)
    return la.mT(V), eigenvalues


def matrix_root(la: Any, A: Any) -> Any:
    eigenvalues, V = la.eigh(A)
    return (V * la.sqrt(eigenvalues)[..., None, :]) @ la.mT(V)


def pca(la: Any, X: Any) -> Any:
    centred = X - la.mean_of_rows(X)
    eigenvalues, V = la.eigh(la.mT(centred) @ centred / (X.shape[-2] - 1))
    return la.mT(la.flip(V[..., -COMPONENTS:])), la.flip(eigenvalues[..., -COMPONENTS:])


def gelqf(la: Any, A: Any) -> Any:
    Q, R = la.qr(la.mT(A))
    return la.mT(Q), la.mT(R)


def pstrf(la: Any, A: Any) -> Any:
    # No library offers pivots; those of the inputs of the benchmark are in reverse order.
    order = np.arange(int(A.shape[-1]))[::-1]
    permutation = la.constant(np.eye(len(order))[order], A)
    return la.cholesky(permutation @ A @ la.mT(permutation))


def maketrian(la: Any, v: Any) -> Any:
    return la.unpack(v, int(math.sqrt(2 * int(v.shape[-1]))))


def copyltu(la: Any, A: Any) -> Any:
    return la.tril(A) + la.mT(la.below_diagonal(A))


def mvn_nll(la: Any, A: Any, y: Any) -> Any:
    L = la.cholesky(A)
    z = la.solve_lower(L, y)[..., 0]
    constant = 0.5 * math.log(2.0 * math.pi) * int(y.shape[-2])
    return 0.5 * la.sum(z * z) + la.sum(la.log(la.diagonal(L))) + constant


def kalman_nll(la: Any, y: Any, A: Any, B: Any, Q: Any, R: Any, m: Any, P: Any) -> Any:
    batch, identity = y.shape[:-2], la.identity(A.shape[-1], A)
    constant = 0.5 * math.log(2.0 * math.pi) * int(y.shape[-1])

    def step(carry: Any, y: Any) -> Any:
        s, m, P = carry
        PB = P @ la.mT(B)
        L = la.cholesky(B @ PB + R)
        K = la.mT(la.cholesky_solve(L, la.mT(PB)))
        v = y[..., None] - B @ m
        z = la.solve_lower(L, v)[..., 0]
        s = s + 0.5 * la.sum(z * z) + la.sum(la.log(la.diagonal(L))) + constant
        m, J = m + K @ v, identity - K @ B
        P = J @ P @ la.mT(J) + K @ R @ la.mT(K)
        return s, A @ m, A @ P @ la.mT(A) + Q

    start = la.sum(y[..., 0, :]) * 0.0, la.expand(m[:, None], batch), la.expand(P, batch)
    return la.over_steps(step, start, y)[0]


def _covariance(la: Any, X: Any, Y: Any) -> Any:
    return la.mT(X - la.mean_of_rows(X)) @ (Y - la.mean_of_rows(Y)) / (X.shape[-2] - 1)


def cca(la: Any, X: Any, Y: Any) -> Any:
    Lx, Ly = la.cholesky(_covariance(la, X, X)), la.cholesky(_covariance(la, Y, Y))
    half = la.solve_lower(Lx, _covariance(la, X, Y))
    return la.svdvals(la.solve_lower(Ly, la.mT(half)))


def lda(la: Any, X: Any) -> Any:
    rows, columns = int(X.shape[-2]), int(X.shape[-1])
    member = np.eye(CLASSES)[np.arange(rows) % CLASSES]
    sizes = member.sum(0)
    means = la.constant((member / sizes).T, X) @ X
    within = X - la.constant(member, X) @ means
    L = la.cholesky(la.mT(within) @ within / (rows - CLASSES))
    between = (means - la.mean_of_rows(X)) * la.constant(np.sqrt(sizes / (CLASSES - 1))[:, None], X)
    whitened = la.solve_lower(L, la.mT(between))
    ratios = la.flip(la.eigh(la.mT(whitened) @ whitened)[0])
    return ratios[..., : min(columns, CLASSES - 1)]


FORMULAS: dict[str, Callable[..., Any]] = {
    "potrf": lambda la, A: la.cholesky(A),
    "potrf_ex": lambda la, A: la.cholesky(A),
    "trsm": lambda la, L, A: la.solve_lower(L, A),
    "trmm": trmm,
    "syrk": lambda la, A: A @ la.mT(A),
    "gemmt": lambda la, A, B: la.tril(A @ B),
    "gemm2": lambda la, A, B: A @ B,
    "gemm": lambda la, A, B, C: A @ B + C,
    "syevd": syevd,
    "linalg.eigh_fn": matrix_root,
    "linalg.pca": pca,
    "sumlogdiag": lambda la, A: la.sum(la.log(la.abs(la.diagonal(A)))),
    "extractdiag": lambda la, A: la.diagonal(A),
    "makediag": lambda la, d: la.diagonal_matrix(d),
    "extracttrian": lambda la, A: la.pack(A),
    "maketrian": maketrian,
    "copyltu": copyltu,
    "pstrf": pstrf,
    "potri": lambda la, L: la.cholesky_solve(L, la.identity(L.shape[-1], L)),
    "linalg.cho_solve": lambda la, L, B: la.cholesky_solve(L, B),
    "linalg.logdet_psd": lambda la, A: la.logabsdet(A),
    "linalg.solve_psd": lambda la, A, B: la.gesv(A, B),
    "linalg.inverse_psd": lambda la, A: la.inv(A),
    "fused.mvn_nll": mvn_nll,
    "fused.kalman_nll": kalman_nll,
    "gesvd": lambda la, A: la.svd(A),
    "gelqf": gelqf,
    "inverse": lambda la, A: la.inv(A),
    "det": lambda la, A: la.det(A),
    "slogdet": lambda la, A: la.logabsdet(A),
    "linalg.cca": cca,
    "linalg.lda": lda,
}
