"""Applying Lu^-1, by solves with the Cholesky factor Lu of K_uu or by products with its inverse.

A GPU is twice as fast at products as at solves, and an evaluation applies Lu^-1 once per chunk and four times
more. The residual of L^-1 K by the inverse is that of a solve times the condition of L. So the inverse is
used only where K_uu is regular enough for the chunk products in ``gradient`` to be precise, too.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lapgrad._kernels.table import lookup
from lapgrad.ops.gemm import multiply_into

#: Order up to which L^-T X L^-1 is computed by two plain solves: twice the flops, but fewer launches.
_TWO_SOLVES = {"cpu": 256}
_TWO_SOLVES_ELSEWHERE = 4096
#: Order up to which W^T X W is computed by two plain products.
_TWO_PRODUCTS = 1536
#: The inverse is multiplied in at most this many block rows, which leave out the zeros above the diagonal.
#: The rows of a block are a multiple of _ROWS.
_BLOCKS, _ROWS = 4, 64
#: From this many entries on a product takes two blocks, or all of them; from this many rows on all.
_TWO_BLOCKS_FROM, _ALL_BLOCKS_FROM, _MANY_ROWS = 1 << 22, 1 << 24, 768


class Substitution(NamedTuple):
    """Solves with Lu (U, U), lower triangular."""

    Lu: Tensor

    def apply(self, K: Tensor, out: Tensor) -> None:
        """out := Lu^-1 K (U, m)."""
        lookup("trsm", K)(out, self.Lu, K, lower=True, transpose=False, rightside=False)

    def apply_transposed(self, a: Tensor) -> Tensor:
        """Lu^-T a (U, k)."""
        out = torch.empty_like(a)
        lookup("trsm", a)(out, self.Lu, a, lower=True, transpose=True, rightside=False)
        return out

    def sandwich(self, X: Tensor) -> Tensor:
        """X := Lu^-T X Lu^-1 for a symmetric X, in place. The result is symmetric to the last bit."""
        return _sandwich(X, self.Lu)

    def get_pivots(self) -> tuple[Tensor, bool]:
        """Return the diagonal (U,) of Lu; and whether these are the reciprocals."""
        return self.Lu.diagonal(), False


class Inverse(NamedTuple):
    """Products with the inverse W (U, U) of Lu: lower triangular, with zeros above the diagonal."""

    W: Tensor

    def apply(self, K: Tensor, out: Tensor) -> None:
        """out := W K (U, m), in 5/4 U^2 m flops if the matrices are large."""
        parts = _split_into_blocks(len(K), _choose_blocks(len(K), K.shape[1]))
        if len(parts) == 1:
            multiply_into(out, self.W, K)
            return
        for part in parts:
            multiply_into(out[part], self.W[part, : part.stop], K[: part.stop])

    def apply_transposed(self, a: Tensor) -> Tensor:
        """W^T a (U, k)."""
        return self.W.mT @ a

    def sandwich(self, X: Tensor) -> Tensor:
        """X := W^T X W for a symmetric X, in place: 15/8 U^3 flops, or 4 U^3. Symmetric to the last bit.

        Of large matrices X W is formed by columns from the left: each block needs only columns of X that are
        not overwritten yet. Then W^T (X W) is formed by rows from the top, the lower triangle only.
        """
        W = self.W
        if len(X) <= _TWO_PRODUCTS:
            multiply_into(X, W.mT, _multiply(X, W))
        else:
            parts = _split_into_blocks(len(X), _BLOCKS)
            for part in parts:
                X[:, part] = _multiply(X[:, part.start :], W[part.start :, part])
            for part in parts:
                X[part, : part.stop] = _multiply(W[part.start :, part].mT, X[part.start :, : part.stop])
        lookup("copyltu", X)(X, X, True)
        return X

    def get_pivots(self) -> tuple[Tensor, bool]:
        """Return 1 / diag(Lu), (U,), and True because they are reciprocals."""
        return self.W.diagonal(), True


def invert_factor(Lu: Tensor) -> Inverse:
    """Return the inverse of Lu, in new memory."""
    W = torch.empty_like(Lu)
    lookup("invert_triangle", Lu)(W, Lu)
    return Inverse(W)


def _multiply(A: Tensor, B: Tensor) -> Tensor:
    """A B, in new memory."""
    return multiply_into(A.new_empty(len(A), B.shape[1]), A, B)


def _choose_blocks(rows: int, columns: int) -> int:
    """Return how many block rows the inverse is cut into for a product with this many columns.

    Each block must keep a GPU busy: otherwise more is lost than the zeros save.
    """
    if rows * columns < _TWO_BLOCKS_FROM:
        return 1
    return _BLOCKS if rows >= _MANY_ROWS or rows * columns >= _ALL_BLOCKS_FROM else 2


def _split_into_blocks(n: int, blocks: int) -> list[slice]:
    """Split rows 0 to n into at most that many blocks of equal size (the last may be smaller)."""
    size = max(1, -(-n // (blocks * _ROWS))) * _ROWS
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


def _sandwich(X: Tensor, L: Tensor) -> Tensor:
    """X := L^-T X L^-1 for a symmetric X, in place: U^3 flops, or 2 U^3 for small matrices.

    With L = [[L11, 0], [L21, L22]], Y the result, C = L22^-T X21 and P = Y22 L21:

        Y22 = L22^-T X22 L22^-1,   Y21 = (C - P) L11^-1,   Y11 = L11^-T (X11 - N - N^T) L11^-1,
        N = L21^T (C - P / 2)
    """
    n, solve = len(X), lookup("trsm", X)
    if n <= _TWO_SOLVES.get(X.device.type, _TWO_SOLVES_ELSEWHERE):
        solve(X, L, X, lower=True, transpose=False, rightside=True)
        solve(X, L, X, lower=True, transpose=True, rightside=False)
        lookup("copyltu", X)(X, X, True)
        return X
    half = n // 2
    X11, X21, X22 = X[:half, :half], X[half:, :half], X[half:, half:]
    L11, L21, L22 = L[:half, :half], L[half:, :half], L[half:, half:]
    _sandwich(X22, L22)
    solve(X21, L22, X21, lower=True, transpose=True, rightside=False)
    P = _multiply(X22, L21)
    N = _multiply(L21.mT, X21.sub_(P, alpha=0.5))
    X11.sub_(N).sub_(N.mT)
    solve(X21, L11, X21.sub_(P, alpha=0.5), lower=True, transpose=False, rightside=True)
    _sandwich(X11, L11)
    X[:half, half:] = X21.mT
    return X
