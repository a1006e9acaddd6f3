"""Where one algorithm takes over from another: measured on an H200, one place for all of them."""

from __future__ import annotations

#: Order of the diagonal blocks that are inverted: larger ones mean fewer, larger products, and more waste.
REVERSE_BLOCK = 1024  # potrf's reverse sweep
SOLVE_BLOCK = 512
INVERSE_BLOCK = 1024
ORTHOGONALISE_BLOCK = 256

#: A triangle of a product is cut into blocks down to this order, and those are computed whole.
PRODUCT_CUT = 1024

#: In gelqf's gradient, where sums are as long as A is wide: from this many terms on blocks of half that order
#: are large enough.
LONG_SUM = 4096

#: From this order on the algorithms for large matrices are used at all: two leaves of the inversion.
LARGE = 128

#: From this order on a singular value decomposition goes by polar decomposition or Gram matrix.
POLAR_FROM = 256

#: Matrices of a batch are taken one after another when they are few, or when each fills the device.
FEW = 4
ORDER_THAT_FILLS = 1024

#: From this order, and this many columns, on a solve by inverted blocks is faster than cuBLAS's.
SOLVE_BY_BLOCKS_FROM = 512
SOLVE_BY_BLOCKS_COLUMNS = 256
#: From this one on with any number of columns: a single one takes cuBLAS 9 ms at n = 16384.
SOLVE_ANY_BY_BLOCKS_FROM = 4096


def serves_items_one_by_one(items: int, n: int) -> bool:
    """Whether a batch is served by the algorithms for one large matrix."""
    return items <= FEW or n >= ORDER_THAT_FILLS


def solves_by_blocks(n: int, columns: int) -> bool:
    """Whether a triangular solve of order n pays for the inverses of the diagonal blocks."""
    return n >= SOLVE_BY_BLOCKS_FROM and (columns >= SOLVE_BY_BLOCKS_COLUMNS or n >= SOLVE_ANY_BY_BLOCKS_FROM)


def choose_product_cut(terms: int) -> int:
    """The order down to which a triangle of a product with sums of that many terms is cut."""
    return PRODUCT_CUT // 2 if terms >= LONG_SUM else PRODUCT_CUT
