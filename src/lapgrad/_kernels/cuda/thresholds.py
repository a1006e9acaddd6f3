"""The sizes from which one CUDA algorithm is faster than another, measured on an H200.

The geometry of a launch (threads, lanes, tiles) is not here: it belongs to a kernel, and stands beside its
plan in ``small/``.
"""

from __future__ import annotations

#: Order of the diagonal blocks that are inverted: larger ones mean fewer, larger products, and more waste.
REVERSE_BLOCK = 1024  # potrf's reverse sweep
SOLVE_BLOCK = 512
INVERSE_BLOCK = 1024
ORTHOGONALISE_BLOCK = 256

#: Order of the diagonal blocks of a batched Cholesky factorisation. With more than POTRF_MANY items it is
#: POTRF_BLOCK_OF_MANY, because a large block takes all the memory of a multiprocessor.
POTRF_BLOCK = 128
POTRF_BLOCK_OF_MANY = 64
POTRF_MANY = 256
#: Up to this order the launches of one matrix's factorisation take as long as the factorisation.
POTRF_ALONE = 1024
#: Two matrices are factorised together up to this order, and one after the other above it. Three or more are
#: always factorised together.
POTRF_PAIR = 512

#: A triangle of a product is halved recursively down to this order; smaller blocks are computed whole.
PRODUCT_CUT = 1024

#: In gelqf's gradient sums are as long as A is wide. From this many terms on, blocks of half that order are
#: large enough.
LONG_SUM = 4096

#: Triangular and symmetric products with at most this many multiplications, terms of a sum and tiles are one
#: launch of a kernel: launching takes longer than computing there.
FEW_MULTIPLICATIONS = 1 << 23
FEW_TERMS = 512
FEW_TILES = 4096

#: Up to this order matrices are mirrored row by row: a tile of 32 x 32 would have little to do.
MIRROR_BY_ROWS = 64

#: Up to this order trmm with a gradient is torch's product of whole matrices: torch records it in C++, which
#: saves more time than half of the product takes.
TRMM_WHOLE_UP_TO = 512
#: Up to this number of multiplications the second product of torch's gradient of A A^T is cheaper than a
#: gradient that is recorded in Python.
SYRK_VJP_TWICE = 3 * 10**8

#: From this order on the algorithms for large matrices are used: it is that of two of the diagonal blocks
#: (leaves) that they invert.
LARGE = 128

#: From this order on singular values of one matrix are computed by QDWH or the Gram matrix.
POLAR_FROM = 256

#: Singular values come from polar decompositions by products for short sides from GESVD_BATCHED_FROM to
#: GESVD_BATCHED_MOST. Matrices that are wider by GESVD_LQ_FROM go through an LQ factorisation first.
GESVD_BATCHED_FROM = 65
GESVD_BATCHED_MOST = 1024
GESVD_LQ_FROM = 3.0

#: Most items of a launch that has the items in its second dimension.
MOST_ITEMS = 65535

#: Matrices of a batch are taken one after another when they are few, or when each fills the device.
FEW = 4
ORDER_THAT_FILLS = 1024

#: From this order, and this many columns, on a solve by inverted blocks is faster than cuBLAS's.
SOLVE_BY_BLOCKS_FROM = 512
SOLVE_BY_BLOCKS_COLUMNS = 256
#: From this order on, solves by blocks serve any number of columns: cuBLAS takes 9 ms for a single one at n =
#: 16384.
SOLVE_ANY_BY_BLOCKS_FROM = 4096

#: A single column is solved for by cuBLAS's routine for vectors up to this order; above it by blocks.
SOLVE_ONE_COLUMN_UP_TO = 6144
#: Up to this order, and with long sums, a whole product is faster than one triangle of it by syrk.
WHOLE_PRODUCT_UP_TO = 768

# Batches of small matrices: the largest order, or side, that a kernel of its own serves. Up to the second
# number of a pair the kernel uses a part of a warp, one warp or registers only; above it a block.
POTRF_SMALL = 128
POTRF_IN_WARP = 32
#: The code for a step of gelqf is unrolled for each column that a lane has: for 32 columns it takes seconds
#: to compile, and no longer fits the instruction cache.
GELQF_SMALL = 128
GELQF_IN_GROUP = 16
#: A panel of 16 rows of float64 fits into the registers of a multiprocessor.
GELQF_PANEL_COLUMNS = 1024
#: One matrix with more columns is factorised by Cholesky factorisations, which fill the device.
GELQF_PANELS_ALONE = 256
#: Up to this order a block factorises a matrix with pivoting: the launch of a step takes as long as the step.
PSTRF_IN_BLOCK = 256
LU_SMALL = 128
LU_IN_WARP = 32
#: A panel has a thread for each row.
LU_PANELS = 1024
TRIANGULAR_SMALL = 128
TRIANGULAR_IN_REGISTERS = 16
#: Above these orders the memory of a multiprocessor holds too few matrices to hide latencies.
SYEVD_SMALL = 64
GESVD_SMALL = 64
#: Above this order the gradients of syevd and gesvd are products around kernels for pairs of tiles.
SPECTRAL_VJP_SMALL = 64
#: From this many entries of the vectors on, the host waits for the small kernel only if there are ties.
SPECTRAL_VJP_UNWAITED = 1 << 17
#: From this many rows in a batch on, a warp measures several of them.
SPECTRAL_VJP_MANY_ROWS = 1 << 14
#: Up to this order, if only the last k eigenvectors have cotangents, zeros stand for those of the others.
SYEVD_VJP_EXTENDED = 1024
#: From this order on only a triangle of a symmetric gradient is multiplied.
SYEVD_VJP_TRIANGLE = 2048
#: Observations are centred by a block per item up to this many entries, or from this many items on.
CENTRE_SMALL = 1 << 15
CENTRE_MANY = 128
KALMAN_STATES = 32
KALMAN_OBSERVATIONS = 16
#: Columns of the features of a covariance function: a thread holds one point, and the gradient for it.
FEATURES_IN_REGISTERS = 32

#: Triangles above order TRIANGULAR_ALONE are left to a library, which gives each the whole device, in batches
#: of up to TRIANGULAR_FEW items.
TRIANGULAR_ALONE = 64
TRIANGULAR_FEW = 2
#: The fewest items: a kernel gives one matrix one multiprocessor, a library gives it the whole device.
GELQF_WIDE_FEWEST = 4
#: From this many items on the gradient of matrices with up to 16 rows, and any columns, is one kernel.
GELQF_WIDE_MANY = 512
#: One matrix goes through an LQ factorisation first if it has a short side up to GELQF_SMALL, and the long
#: one is longer than GESVD_SMALL and this many times as long.
GESVD_LQ_ALONE = 2.0
#: A tall one with fewer columns does so only above GELQF_PANEL_COLUMNS rows.
GESVD_LQ_TALL = 32
#: cuSOLVER's batched routine serves this order and lower ones. It is fastest where a multiprocessor holds a
#: matrix, up to SYEVD_IN_BLOCK bytes. Above that, up to SYEVD_FEW matrices are faster one after another.
SYEVD_BATCHED = 2048
SYEVD_IN_BLOCK = 160 * 2**10
SYEVD_FEW = 7
#: One matrix is decomposed as a batch of two up to this order.
SYEVD_DOUBLED = 128
#: One matrix of float64 is left to cuSOLVER from this order on.
SYEVD_ALONE = 28
#: The product of up to this many columns is added in the last pass over an inverse.
POTRI_FEW_COLUMNS = 4
#: If there would be this many threads or more, each moves several rows of a packed triangle.
PACKING_MANY_THREADS = 1 << 20

# Bytes of workspace: batches are cut into parts that stay below.
GESVD_WORKSPACE = 64 * 2**20
GESVD_BATCHED_WORKSPACE = 2**30
#: The part of a device's memory that cuSOLVER's batched eigenvalues may have: some 14 times their operand.
SYEVD_WORKSPACE_PART = 32
#: Predicted moments and sums of gradients of all series of a launch, and moments of one series.
KALMAN_WORKSPACE = 1 << 27
KALMAN_KEPT = 1 << 19


def serves_items_one_by_one(items: int, n: int) -> bool:
    """Whether a batch is served by the algorithms for one large matrix."""
    return items <= FEW or n >= ORDER_THAT_FILLS


def factorises_by_blocks(items: int, n: int) -> bool:
    """Whether a batch is factorised by blocks of all its items at once, and not one item after another."""
    return items > 2 or (items == 2 and n <= POTRF_PAIR)


def choose_potrf_block(items: int) -> int:
    """Return the order of the diagonal blocks of a batched Cholesky factorisation."""
    return POTRF_BLOCK if items <= POTRF_MANY else POTRF_BLOCK_OF_MANY


def eliminates_by_panels(items: int, n: int) -> bool:
    """Whether LU factorisations above order LU_SMALL are computed by panels of all items at once."""
    return items > 1 and n <= LU_PANELS


def solves_by_blocks(n: int, columns: int) -> bool:
    """Whether a triangular solve of order n is faster with inverted diagonal blocks."""
    return n >= SOLVE_BY_BLOCKS_FROM and (columns >= SOLVE_BY_BLOCKS_COLUMNS or n >= SOLVE_ANY_BY_BLOCKS_FROM)


def solves_one_column(items: int, n: int, columns: int) -> bool:
    """Whether a solve has a single column, and cuBLAS's routine for vectors is the fastest for it."""
    return items == 1 and columns == 1 and n <= SOLVE_ONE_COLUMN_UP_TO


def choose_inverse_block(n: int) -> int:
    """Order of the diagonal blocks that are inverted on the way to an inverse; half of it for small matrices.

    The blocks of a matrix of order 1024 would take as much memory as the matrix, to gain a twentieth of a
    millisecond.
    """
    return INVERSE_BLOCK // 2 if n <= INVERSE_BLOCK else INVERSE_BLOCK


def choose_product_cut(terms: int) -> int:
    """Return the order down to which a triangle of a product is halved, for sums of ``terms`` terms."""
    return PRODUCT_CUT // 2 if terms >= LONG_SUM else PRODUCT_CUT


def choose_eigenvalue_batch(items: int, n: int, itemsize: int) -> int:
    """How many matrices cuSOLVER's eigenvalue routines take at a time: all, 1, or for some sizes 2.

    With 1 the routine for single matrices is called. For some sizes it takes longer than the batched one with
    two.
    """
    if items == 1:
        return 2 if SYEVD_SMALL < n <= SYEVD_DOUBLED else 1
    return 1 if items <= SYEVD_FEW and n * n * itemsize > SYEVD_IN_BLOCK else items
