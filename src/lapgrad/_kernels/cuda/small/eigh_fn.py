"""Launches for functions of symmetric matrices: see ``kernels/eigh_fn.cu``. Matrices of any size."""

from __future__ import annotations

from torch import Tensor

from lapgrad._kernels.cuda.runtime.items import Launch, get_address

_TILE, _THREADS = 32, 256

#: The numbers of the functions in ``kernels/eigh_fn.cu``; a power with a whole exponent has another one.
_NUMBERS = {"exp": 0, "log": 1, "sqrt": 2, "rsqrt": 3, "inv": 4, "power": 5}
_WHOLE_POWER = 6
#: Up to this the powers of whole exponents are multiplied out.
_LARGEST_WHOLE = 64


def _number_function(f: str, exponent: float) -> int:
    whole = f == "power" and exponent == int(exponent) and abs(exponent) <= _LARGEST_WHOLE
    return _WHOLE_POWER if whole else _NUMBERS[f]


def plan_scaling(
    W: Tensor, U: Tensor, eigenvalues: Tensor, f: str, exponent: float, tol: float, cell: Tensor | None
) -> Launch:
    """W := diag(f(l)) U. All have one batch dimension, and W and the eigenvalues are contiguous."""
    items, n, _ = U.shape
    return (
        "eigh_fn", "scale_by_function<{T}>", U, (-(-items * n // (_THREADS // 32)),), _THREADS, 0,
        W.data_ptr(), U.data_ptr(), *U.stride(), eigenvalues.data_ptr(), _number_function(f, exponent),
        float(exponent), float(tol), get_address(cell), items * n, n,
    )  # fmt: skip


def plan_weighing(P: Tensor, eigenvalues: Tensor, f: str, exponent: float, tol: float) -> Launch:
    """P := F o sym(P), in place; contiguous, with one batch dimension."""
    return (
        "eigh_fn", "weigh_by_function<{T}>", P, *_choose_geometry(P),
        P.data_ptr(), eigenvalues.data_ptr(), _number_function(f, exponent), float(exponent), float(tol),
        P.shape[-1],
    )  # fmt: skip


def plan_symmetrising(B: Tensor) -> Launch:
    """B := sym(B), in place; contiguous, with one batch dimension."""
    return "eigh_fn", "symmetrise<{T}>", B, *_choose_geometry(B), B.data_ptr(), B.shape[-1]


def _choose_geometry(A: Tensor) -> tuple[tuple[int], int, int]:
    """Grid, threads and bytes: one block for each pair of tiles."""
    tiles = -(-A.shape[-1] // _TILE)
    pairs = len(A) * (tiles * (tiles + 1) // 2)
    return (pairs,), _THREADS, 2 * _TILE * (_TILE + 1) * A.element_size()
