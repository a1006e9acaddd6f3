"""Triangles of large matrices, in place: mirroring, clearing, and the inverses of diagonal blocks.

The inverse of a triangle is all gemm but for its smallest blocks: with L = [[A, 0], [C, B]],

    L⁻¹ = [[A⁻¹, 0], [−B⁻¹ C A⁻¹, B⁻¹]]

so blocks of 64 come from a kernel, and each doubling is two products for all blocks at once.
"""

from __future__ import annotations

from torch import Tensor

from lapgrad._cuda import _launch, _sizes
from lapgrad._cuda._blas import Blas
from lapgrad._cuda._block import Block

MIRROR_UP, MIRROR_DOWN, MOVE_DOWN, CLEAR_UPPER, CLEAR_LOWER = range(5)

LEAF = 64
_TILE = 32
_THREADS = 256


def items_of(A: Tensor) -> Tensor:
    """A with one leading dimension: (items, m, n). A view, where leading dimensions lie one after another."""
    return A.unsqueeze(0) if A.dim() == 2 else A.flatten(0, -3) if A.dim() > 3 else A


def storable(A: Tensor) -> bool:
    """Whether results can be written into A's memory row by row."""
    return A.stride(-1) == 1 and A.stride(-2) >= A.shape[-1] and (A.dim() <= 3 or A.is_contiguous())


def reshape(like: Tensor, A: Block, kind: int) -> None:
    """Mirrors, moves or clears a triangle of A, row-major; ``like`` says the type and the device."""
    _launch.launch(
        "triangle", f"reshape_triangle<{{T}}, {kind}>", like, (tile_pairs(A.rows), A.items), _THREADS,
        tile_memory(A.bytes), A.address, A.step, A.row, A.rows,
    )  # fmt: skip


def tile_pairs(n: int) -> int:
    """Blocks that have the pairs of tiles of a matrix of order n."""
    tiles = -(-n // _TILE)
    return tiles * (tiles + 1) // 2


def tile_memory(element: int) -> int:
    """Bytes of shared memory for two padded tiles."""
    return 2 * _TILE * (_TILE + 1) * element


def copy(like: Tensor, target: Block, source: Block) -> None:
    """target := source, both row-major."""
    _launch.launch(
        "triangle", "copy_rows<{T}>", like, (target.rows, target.items), _THREADS, 0,
        target.address, target.step, target.row, source.address, source.step, source.row, target.cols,
    )  # fmt: skip


def copy_transposed(like: Tensor, target: Block, source: Block) -> None:
    """target := sourceᵀ, both row-major."""
    _launch.launch(
        "triangle", "copy_transposed<{T}>", like,
        (-(-target.rows // _TILE), -(-target.cols // _TILE), target.items), _THREADS, tile_memory(target.bytes) // 2,
        target.address, target.step, target.row, source.address, source.step, source.row,
        target.rows, target.cols,
    )  # fmt: skip


class InvertedBlocks:
    """The inverses of the diagonal blocks of a lower triangle.

    ``W.part(r, s, r, s)`` is the inverse of L's block from r to s, for r a multiple of ``size`` and s the next one
    or the end. Nothing else of W may be touched: its rows are ``min(n, size)`` apart, so that it takes
    n (size + 1) elements, not n².
    """

    def __init__(self, blas: Blas, like: Tensor, L: Block, size: int) -> None:
        """Reads the lower triangle of L, whichever way it lies; ``size`` is 64 times a power of two."""
        n = L.rows
        row = min(n, size)
        self.size = size
        self._memory = like.new_zeros(L.items * n * (row + 1))
        self.W = Block(self._memory.data_ptr(), n, n, row, 1, L.bytes, L.items, n * (row + 1))
        _launch.launch(
            "triangle", "invert_leaves<{T}>", like, (-(-n // LEAF), L.items), LEAF,
            2 * LEAF * (LEAF + 1) * L.bytes,
            L.address, L.step, L.row, L.col, self.W.address, self.W.step, row, n,
        )  # fmt: skip
        if n <= LEAF or size <= LEAF:
            return
        product = like.new_empty(n * min(n, size) // 4 + n)
        half = LEAF
        while half < size and half < n:
            for item in range(L.items):
                _merge(blas, L.item(item), self.W.item(item), product.data_ptr(), half)
            half *= 2

    def between(self, lo: int, hi: int) -> InvertedBlocks:
        """The same for the rows and columns from ``lo``, a multiple of ``size``, to ``hi``."""
        part = object.__new__(InvertedBlocks)
        part.size, part._memory, part.W = self.size, self._memory, self.W.part(lo, hi, lo, hi)
        return part


def _merge(blas: Blas, L: Block, W: Block, product: int, half: int) -> None:
    """From inverses of blocks of order ``half`` to those of twice the order; n half / 2 elements for products."""
    n = L.rows
    pairs, rest = divmod(n, 2 * half)
    if pairs:
        held = Block(product, half, half, half, 1, L.bytes, pairs, half * half)
        A, B, C = ((top, left, half, 2 * half, pairs) for top, left in ((0, 0), (half, half), (half, 0)))
        blas.gemm(held, L.diagonal_blocks(*C), W.diagonal_blocks(*A))
        blas.gemm(W.diagonal_blocks(*C), W.diagonal_blocks(*B), held, -1.0)
    if rest > half:
        start, middle = n - rest, n - rest + half
        held = Block(product, n - middle, half, half, 1, L.bytes)
        blas.gemm(held, L.part(middle, n, start, middle), W.part(start, middle, start, middle))
        blas.gemm(W.part(middle, n, start, middle), W.part(middle, n, middle, n), held, -1.0)


def solve_left(
    blas: Blas,
    like: Tensor,
    X: Block,
    M: Block,
    inverted: InvertedBlocks,
    *,
    lower: bool,
    transposed: bool = False,
    alpha: float = 1.0,
    refine: bool = False,
) -> None:
    """X := alpha M⁻¹ X in place, block after block: X_J = W_JJ (X_J − Σ M_JK X_K) over the K that are done.

    Args:
        blas: cuBLAS.
        like: Says type and device.
        X: n rows, row-major.
        M: Triangular of order n; ``lower`` says which triangle.
        inverted: Of M, or with ``transposed`` of Mᵀ.
        lower: M is a lower triangle.
        transposed: See above.
        alpha: Factor.
        refine: One step of refinement per block, with which the residual is that of a substitution whatever the
            condition of the blocks is, up to 1/sqrt(eps).
    """
    n, size = X.rows, inverted.size
    W = inverted.W.mT if transposed else inverted.W
    memory = like.new_empty(X.items * min(n, size) * X.cols)
    held = Block(memory.data_ptr(), min(n, size), X.cols, X.cols, 1, X.bytes, X.items, min(n, size) * X.cols)
    starts = range(0, n, size)
    for start in starts if lower else reversed(starts):
        stop = min(start + size, n)
        first, last = (0, start) if lower else (stop, n)
        block, rest = X.part(start, stop, 0, X.cols), held.part(0, stop - start, 0, X.cols)
        inverse = W.part(start, stop, start, stop)
        copy(like, rest, block)
        scale = alpha
        if last > first:
            blas.gemm(rest, M.part(start, stop, first, last), X.part(first, last, 0, X.cols), -1.0, alpha)
            scale = 1.0
        blas.gemm(block, inverse, rest, scale)
        if refine:
            blas.gemm(rest, M.part(start, stop, start, stop), block, -1.0, scale)
            blas.gemm(block, inverse, rest, 1.0, 1.0)


def solve_right(
    blas: Blas,
    like: Tensor,
    X: Block,
    M: Block,
    inverted: InvertedBlocks,
    *,
    lower: bool,
    transposed: bool = False,
    alpha: float = 1.0,
) -> None:
    """X := alpha X M⁻¹ in place: X_J = (X_J − Σ X_K M_KJ) W_JJ over the K that are done. As ``solve_left``."""
    n, size, rows = X.cols, inverted.size, X.rows
    W = inverted.W.mT if transposed else inverted.W
    width = min(n, size)
    memory = like.new_empty(X.items * rows * width)
    starts = range(0, n, size)
    for start in reversed(starts) if lower else starts:
        stop = min(start + size, n)
        first, last = (stop, n) if lower else (0, start)
        block = X.part(0, rows, start, stop)
        rest = Block(memory.data_ptr(), rows, stop - start, width, 1, X.bytes, X.items, rows * width)
        copy(like, rest, block)
        scale = alpha
        if last > first:
            blas.gemm(rest, X.part(0, rows, first, last), M.part(first, last, start, stop), -1.0, alpha)
            scale = 1.0
        blas.gemm(block, rest, W.part(start, stop, start, stop), scale)


def triangular_product(
    blas: Blas,
    C: Block,
    A: Block,
    B: Block,
    *,
    lower: bool,
    alpha: float,
    beta: float,
    cut: int | None = None,
) -> None:
    """The named triangle of C := alpha A B + beta C, cut in halves down to ``cut``; beyond it anything."""
    n, inner = C.rows, A.cols
    cut = cut or _sizes.PRODUCT_CUT
    if n <= cut:
        blas.gemm(C, A, B, alpha, beta)
        return
    half = cut * (-(-n // cut) // 2)
    for first, last in ((0, half), (half, n)):
        C_, A_, B_ = (
            C.part(first, last, first, last), A.part(first, last, 0, inner), B.part(0, inner, first, last)
        )  # fmt: skip
        triangular_product(blas, C_, A_, B_, lower=lower, alpha=alpha, beta=beta, cut=cut)
    rows, cols = ((half, n), (0, half)) if lower else ((0, half), (half, n))
    blas.gemm(C.part(*rows, *cols), A.part(*rows, 0, inner), B.part(0, inner, *cols), alpha, beta)
