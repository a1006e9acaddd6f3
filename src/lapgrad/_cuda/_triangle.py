"""Triangles of large matrices, in place: mirroring, clearing, and the inverses of diagonal blocks.

The inverse of a triangle is all gemm but for its smallest blocks: with L = [[A, 0], [C, B]],

    L⁻¹ = [[A⁻¹, 0], [−B⁻¹ C A⁻¹, B⁻¹]]

so blocks of 64 come from a kernel, and each doubling is two products for all blocks at once.
"""

from __future__ import annotations

from torch import Tensor

from lapgrad._cuda import _blas, _launch, _sizes

MIRROR_UP, MIRROR_DOWN, MOVE_DOWN, CLEAR_UPPER, CLEAR_LOWER = range(5)

LEAF = 64
_TILE = 32
_THREADS = 256


def reshape(A: Tensor, kind: int) -> None:
    """Mirrors, moves or clears a triangle of A: (n, n) or (items, n, n), unit stride in the last dimension."""
    n = A.shape[-1]
    item, count = (0, 1) if A.dim() == 2 else (A.stride(0), A.shape[0])
    _launch.launch(
        "triangle", f"reshape_triangle<{{T}}, {kind}>", A, (tile_pairs(n), count), _THREADS, tile_memory(A),
        A.data_ptr(), item, A.stride(-2), n,
    )  # fmt: skip


def tile_pairs(n: int) -> int:
    """Blocks that have the pairs of tiles of a matrix of order n."""
    tiles = -(-n // _TILE)
    return tiles * (tiles + 1) // 2


def tile_memory(A: Tensor) -> int:
    """Bytes of shared memory for two padded tiles."""
    return 2 * _TILE * (_TILE + 1) * A.element_size()


def inverted_blocks(L: Tensor, size: int) -> Tensor:
    """The inverses of the diagonal blocks of a lower triangle.

    Args:
        L: (items, n, n), of which the lower triangle is read; any strides.
        size: Order of the blocks: 64 times a power of two.

    Returns:
        W: (items, n, n) with W[:, r:s, r:s] the inverse of L[:, r:s, r:s] for r = 0, size, 2 size, ... Nothing else of
        it may be touched: rows are ``min(n, size)`` apart, so that it takes n (size + 1) elements, not n².
    """
    items, n = L.shape[:2]
    row = min(n, size)
    memory = L.new_zeros(items, n * (row + 1))
    W = memory.as_strided((items, n, n), (n * (row + 1), row, 1))
    _launch.launch(
        "triangle", "invert_leaves<{T}>", L, (-(-n // LEAF), items), LEAF, 2 * LEAF * (LEAF + 1) * L.element_size(),
        L.data_ptr(), L.stride(0), L.stride(1), L.stride(2), W.data_ptr(), W.stride(0), row, n,
    )  # fmt: skip
    half = LEAF
    while half < size and half < n:
        for item in range(items):
            _merge(L[item], W[item], half)
        half *= 2
    return W


def _merge(L: Tensor, W: Tensor, half: int) -> None:
    """From inverses of blocks of order ``half`` to those of twice the order."""
    n = L.shape[0]
    pairs, rest = divmod(n, 2 * half)
    if pairs:
        across = _every(L, half, pairs, half, 0)
        product = L.new_empty(pairs, half, half)
        _blas.gemm(product, across, _every(W, half, pairs, 0, 0))
        _blas.gemm(_every(W, half, pairs, half, 0), _every(W, half, pairs, half, half), product, alpha=-1.0)
    if rest > half:
        start, middle = pairs * 2 * half, pairs * 2 * half + half
        product = L.new_empty(n - middle, half)
        _blas.gemm(product, L[middle:, start:middle], W[start:middle, start:middle])
        _blas.gemm(W[middle:, start:middle], W[middle:, middle:], product, alpha=-1.0)


def _every(A: Tensor, half: int, pairs: int, row: int, column: int) -> Tensor:
    """(pairs, half, half): one quarter of each diagonal block of order 2 half."""
    rows, columns = A.stride()
    start = A.storage_offset() + row * rows + column * columns
    return A.as_strided((pairs, half, half), (2 * half * (rows + columns), rows, columns), start)


def solve_left(
    X: Tensor, M: Tensor, W: Tensor, size: int, lower: bool, *, alpha: float = 1.0, refine: bool = False
) -> None:
    """X := alpha M⁻¹ X in place, with the inverses W of M's diagonal blocks.

    Block after block: X_J = W_JJ (X_J − Σ M_JK X_K) over the K that are done.

    Args:
        X: (items, n, k), unit stride in the last dimension.
        M: (items, n, n), triangular; ``lower`` says which triangle.
        W: From ``inverted_blocks`` of M; of a transposed M, transposed.
        size: Order of the blocks.
        refine: One step of refinement per block, with which the residual is that of a substitution, whatever the
            condition of the blocks (up to 1/sqrt(eps)).
    """
    n = X.shape[-2]
    starts = range(0, n, size)
    held = X.new_empty(X.shape[0], min(n, size), X.shape[-1])
    for start in starts if lower else reversed(starts):
        stop = min(start + size, n)
        done = slice(0, start) if lower else slice(stop, n)
        block, rest = X[:, start:stop], held[:, : stop - start]
        inverse, own = W[:, start:stop, start:stop], M[:, start:stop, start:stop]
        rest.copy_(block)
        scale = alpha
        if done.stop > done.start:
            _blas.gemm(rest, M[:, start:stop, done], X[:, done], alpha=-1.0, beta=alpha)
            scale = 1.0
        _blas.gemm(block, inverse, rest, alpha=scale)
        if refine:
            _blas.gemm(rest, own, block, alpha=-1.0, beta=scale)
            _blas.gemm(block, inverse, rest, beta=1.0)


def solve_right(X: Tensor, M: Tensor, W: Tensor, size: int, lower: bool, *, alpha: float = 1.0) -> None:
    """X := alpha X M⁻¹ in place: X_J = (X_J − Σ X_K M_KJ) W_JJ over the K that are done; else as ``solve_left``."""
    n = X.shape[-1]
    starts = range(0, n, size)
    held = X.new_empty(X.shape[0], X.shape[-2], min(n, size))
    for start in reversed(starts) if lower else starts:
        stop = min(start + size, n)
        done = slice(stop, n) if lower else slice(0, start)
        block, rest = X[..., start:stop], held[..., : stop - start]
        rest.copy_(block)
        scale = alpha
        if done.stop > done.start:
            _blas.gemm(rest, X[..., done], M[:, done, start:stop], alpha=-1.0, beta=alpha)
            scale = 1.0
        _blas.gemm(block, rest, W[:, start:stop, start:stop], alpha=scale)


def lower_product(C: Tensor, A: Tensor, B: Tensor, alpha: float, beta: float, cut: int | None = None) -> None:
    """The lower triangle of C := alpha A B + beta C, as block columns halved down to ``cut``; above it anything."""
    n = C.shape[-1]
    cut = cut or _sizes.PRODUCT_CUT
    if n <= cut:
        _blas.gemm(C, A, B, alpha, beta)
        return
    half = cut * (-(-n // cut) // 2)
    lower_product(C[..., :half, :half], A[..., :half, :], B[..., :half], alpha, beta, cut)
    _blas.gemm(C[..., half:, :half], A[..., half:, :], B[..., :half], alpha, beta)
    lower_product(C[..., half:, half:], A[..., half:, :], B[..., half:], alpha, beta, cut)


def upper_product(C: Tensor, A: Tensor, B: Tensor, alpha: float, beta: float, cut: int | None = None) -> None:
    """The upper triangle of C := alpha A B + beta C; below it anything."""
    n = C.shape[-1]
    cut = cut or _sizes.PRODUCT_CUT
    if n <= cut:
        _blas.gemm(C, A, B, alpha, beta)
        return
    half = cut * (-(-n // cut) // 2)
    upper_product(C[..., :half, :half], A[..., :half, :], B[..., :half], alpha, beta, cut)
    _blas.gemm(C[..., :half, half:], A[..., :half, :], B[..., half:], alpha, beta)
    upper_product(C[..., half:, half:], A[..., half:, :], B[..., half:], alpha, beta, cut)


def items_of(A: Tensor) -> Tensor:
    """A with one leading dimension: (items, m, n). A view where strides allow it, which they do for fresh results."""
    return A.unsqueeze(0) if A.dim() == 2 else A.flatten(0, -3) if A.dim() > 3 else A


def storable(A: Tensor) -> bool:
    """Whether results can be written into A's memory row by row: no copy is needed to flatten its batch."""
    return A.stride(-1) == 1 and A.stride(-2) >= A.shape[-1] and (A.dim() <= 3 or A.is_contiguous())
