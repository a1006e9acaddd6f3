"""The compiled core on a GPU: cuBLAS by function pointer, own kernels by handle, on torch's current stream.

Algorithms that cut a matrix into many blocks are in the core (csrc/gpu), where no Python runs between two
launches. The functions here pass it addresses, sizes, strides and a workspace (a torch tensor).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lapgrad._kernels.cuda.runtime import compiler as _compile
from lapgrad._kernels.cuda.runtime import libraries as _libraries
from lapgrad._kernels.cuda.runtime import stream as _stream
from lapgrad._kernels.native import core

#: (address, items, stride between them, rows, columns, stride of rows, stride of columns)
Blocks = tuple[int, int, int, int, int, int, int]

MIRROR_UP, MIRROR_DOWN, MOVE_DOWN, CLEAR_UPPER, CLEAR_LOWER = range(5)
_KERNELS = (
    *(f"reshape_triangle<{{T}}, {kind}>" for kind in range(5)),
    "copy_rows<{T}>",
    "copy_transposed<{T}>",
    "invert_leaves<{T}>",
    "merge_inverses<{T}>",
)
_NOTHING: Blocks = (0, 0, 0, 0, 0, 0, 0)


def reshape_triangle(A: Tensor, kind: int) -> None:
    """Mirrors, moves or clears a triangle of A, in place."""
    core.device_reshape(*_get_queue(A), kind, describe_blocks(A))


def gemm(C: Tensor, A: Tensor, B: Tensor, alpha: float = 1.0, beta: float = 0.0) -> None:
    """C := alpha A B + beta C; with beta = 0 the old C is not read."""
    core.device_gemm(*_get_queue(C), describe_blocks(C), describe_blocks(A), describe_blocks(B), alpha, beta)


class BlockedBatch:
    """A batch of matrices (items, m, n), any strides, whose rectangular blocks are operands of products.

    Args:
        A: The batch.

    Slicing three tensors takes longer than the launch of their product; this only computes addresses.
    """

    def __init__(self, A: Tensor) -> None:
        self._address, self._size, self._items = A.data_ptr(), A.element_size(), len(A)
        self._step, self._row, self._column = A.stride()

    def block(self, top: int, bottom: int, left: int, right: int) -> Blocks:
        """Rows ``top`` to ``bottom``, columns ``left`` to ``right`` of every item, the ends not included."""
        address = self._address + (top * self._row + left * self._column) * self._size
        return address, self._items, self._step, bottom - top, right - left, self._row, self._column


def multiply_blocks(
    like: Tensor, C: Blocks, A: Blocks, B: Blocks, alpha: float = 1.0, beta: float = 0.0
) -> None:
    """``gemm`` of blocks of tensors on the device of ``like``, and of its type."""
    core.device_gemm(*_get_queue(like), C, A, B, alpha, beta)


def trmm(C: Tensor, L: Tensor, B: Tensor, lower: bool, rightside: bool) -> None:
    """C := L B, or B L; only the named triangle of L is read."""
    core.device_trmm(
        *_get_queue(C), describe_blocks(C), describe_blocks(L), describe_blocks(B), lower, rightside
    )


def trsm(B: Tensor, L: Tensor, lower: bool, rightside: bool) -> None:
    """B := L⁻¹ B, or B L⁻¹, in place, by cuBLAS's own substitution."""
    core.device_trsm(*_get_queue(B), describe_blocks(B), describe_blocks(L), lower, rightside)


def syrk(C: Tensor, A: Tensor, lower: bool, alpha: float = 1.0, beta: float = 0.0) -> None:
    """The named triangle of C := alpha A Aᵀ + beta C; the other one is left alone."""
    core.device_syrk(*_get_queue(C), describe_blocks(C), describe_blocks(A), lower, alpha, beta)


def multiply_triangle(
    C: Tensor, A: Tensor, B: Tensor, lower: bool, alpha: float, beta: float, cut: int
) -> None:
    """The named triangle of C := alpha A B + beta C.

    The triangle is halved recursively; blocks of order ``cut`` on the diagonal are computed whole, so that
    parts of the other triangle are overwritten, too.
    """
    core.device_triangular_product(
        *_get_queue(C), describe_blocks(C), describe_blocks(A), describe_blocks(B), lower, alpha, beta, cut
    )


def potrf_vjp(G: Tensor, L: Tensor, size: int, cut: int) -> None:
    """The lower triangle of G becomes the symmetric gradient; blocks of order ``size`` are inverted."""
    _run_with_workspace(core.device_potrf_vjp, L, describe_blocks(L), describe_blocks(G), size, cut)


def solve(
    X: Tensor,
    M: Tensor,
    steps: str,
    size: int,
    alpha: float = 1.0,
    refine: bool = False,
    unit: bool = False,
    source: Tensor | None = None,
) -> None:
    """X := alpha M⁻¹ B and so on, with the inverses of the blocks of M's lower triangle.

    Each letter of ``steps`` is a solve: ``l`` with M from the left, ``r`` from the right; ``L``, ``R``: Mᵀ.
    B is ``source``, row-major as X is, else X itself. ``refine``: a step of refinement per block, in solves
    from the left. ``unit``: the diagonal of M is 1, whatever is stored there.
    """
    right = describe_blocks(X if source is None else source)
    _run_with_workspace(
        core.device_solve, M, describe_blocks(X), right, describe_blocks(M), steps, alpha, refine, unit, size
    )


def gelqf_vjp(
    gA: Tensor, Q: Tensor, L: Tensor, gQ: Tensor | None, gL: Tensor | None, size: int, cut: int
) -> None:
    """gA := L⁻ᵀ (gQ + Z Q), Z = copyltu(Lᵀ tril(gL) - gQ Qᵀ), with inverted blocks of order ``size``."""
    given = [_NOTHING if gradient is None else describe_blocks(gradient) for gradient in (gQ, gL)]
    _run_with_workspace(
        core.device_gelqf_vjp,
        L,
        describe_blocks(gA),
        describe_blocks(Q),
        describe_blocks(L),
        *given,
        size,
        cut,
    )


class PanelFactorisation:
    """LQ factorisation of a batch by panels: ``kernels/gelqf_panel.cu`` and csrc/gpu/device_gelqf.h.

    Args:
        rows: (items, m, n), contiguous, overwritten.
        height: Rows of a panel.
    """

    def __init__(self, rows: Tensor, height: int) -> None:
        items, m, n = rows.shape
        rank = min(m, n)
        self._rows = rows
        self._factors = rows.new_empty(items, -(-rank // height) * height, height)
        self._right, self._product = rows.new_empty(items, height, n), rows.new_empty(items, m, height)
        self.signs = rows.new_empty(items, rank)
        buffers = (rows, self._factors, self._right, self._product)
        self._operands = *map(describe_blocks, buffers), self.signs.data_ptr(), height

    def factor(self, L: Tensor, kernels: list[tuple[int, int, int]], threads: int) -> None:
        """Factor all panels. ``kernels``: (handle, columns, bytes) of kernels, in the order of columns."""
        core.device_gelqf_factor(*_get_queue(L), self._operands, describe_blocks(L), kernels, threads)

    def form(self, Q: Tensor) -> None:
        """Complete Q, which holds the identity with the signs of L's columns."""
        core.device_gelqf_form(*_get_queue(Q), self._operands, describe_blocks(Q))


def potri(B: Tensor, size: int) -> None:
    """The lower triangle of B, which holds L in it, becomes that of (L Lᵀ)⁻¹."""
    _run_with_workspace(core.device_potri, B, describe_blocks(B), size)


def iterate_polar(
    X: Tensor, target: Tensor, G: Tensor, middle: Tensor, weights: list[tuple[float, float, float]]
) -> Tensor:
    """X := (a I + b G + c G²) X, G = X Xᵀ, for each (a, b, c). Returns X or ``target``, which has the result.

    All are contiguous, (items, k, n) and (items, k, k), and are overwritten.
    """
    moved: bool = core.device_iterate_polar(
        *_get_queue_of_products(X), *(describe_blocks(operand) for operand in (X, target, G, middle)), weights
    )
    return target if moved else X


def describe_blocks(A: Tensor) -> Blocks:
    """Address, sizes and strides of A: a matrix, or a batch whose items lie at equal distances."""
    if A.dim() == 2:
        return A.data_ptr(), 1, 0, A.shape[0], A.shape[1], A.stride(0), A.stride(1)
    items = A if A.dim() == 3 else A.flatten(0, -3)
    count, rows, cols = items.shape
    step, row, col = items.stride()
    assert items.data_ptr() == A.data_ptr()
    return A.data_ptr(), count, step, rows, cols, row, col


def flatten_batch(A: Tensor) -> Tensor:
    """(items, m, n): A with one leading dimension."""
    return A.unsqueeze(0) if A.dim() == 2 else A.flatten(0, -3)


def make_readable(A: Tensor) -> Tensor:
    """A itself if cuBLAS can read its strides, else a contiguous copy."""
    rows, columns = A.stride()[-2:]
    m, n = A.shape[-2:]
    in_a_piece = (columns == 1 and rows >= max(n, 1)) or (rows == 1 and columns >= max(m, 1))
    return A if in_a_piece and (A.dim() <= 3 or _is_dense_batch(A)) else A.contiguous()


def is_storable(A: Tensor) -> bool:
    """Whether results can be written into A's memory row by row."""
    return A.stride(-1) == 1 and A.stride(-2) >= A.shape[-1] and (A.dim() <= 3 or _is_dense_batch(A))


def _is_dense_batch(A: Tensor) -> bool:
    """Whether the items of several leading dimensions lie at equal distances."""
    sizes, strides = A.shape[:-2], A.stride()[:-2]
    return all(strides[k] == strides[k + 1] * sizes[k + 1] or sizes[k] == 1 for k in range(len(sizes) - 1))


def _run_with_workspace(routine: Callable[..., int], like: Tensor, *arguments: Any) -> None:
    device, handle, stream = _get_queue(like)
    count = routine(device, handle, stream, 0, *arguments)
    work = torch.empty(max(count, 1), dtype=like.dtype, device=like.device)
    routine(device, handle, stream, work.data_ptr(), *arguments)


def _get_queue(like: Tensor) -> tuple[Any, int, int]:
    """(kernels, cuBLAS's handle, stream) for the device of ``like``, the current one."""
    number = like.get_device()
    return (
        _load_device(number, like.dtype),
        torch.cuda.current_blas_handle(),
        _stream.get_current_stream(number),
    )


def _get_queue_of_products(like: Tensor) -> tuple[Any, int, int]:
    """``_get_queue`` for algorithms that use cuBLAS only: no kernels are compiled."""
    stream = _stream.get_current_stream(like.get_device())
    return _load_cublas(like.dtype), torch.cuda.current_blas_handle(), stream


@functools.cache
def _load_cublas(dtype: torch.dtype) -> Any:
    """Return the core's object for one element type, without kernels."""
    _libraries.bind_cublas()
    _libraries.bind_driver()
    return core.Device(dtype.itemsize, [])


@functools.cache
def _load_device(device: int, dtype: torch.dtype) -> Any:
    """Return the core's object for one device and element type, with handles of all its kernels."""
    _libraries.bind_cublas()
    _libraries.bind_driver()
    kind, architecture = (
        ("double", 8) if dtype == torch.float64 else ("float", 4),
        _stream.get_architecture(device),
    )
    kernels = [
        _compile.load_kernel("triangle", name.replace("{T}", kind[0]), device, architecture)
        for name in _KERNELS
    ]
    return core.Device(kind[1], [int(kernel.handle) for kernel in kernels])
