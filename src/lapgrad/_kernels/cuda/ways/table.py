"""Which operator has which way."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any, NamedTuple

from lapgrad._kernels.cuda.ways import diagonals, factors, products


class Way(NamedTuple):
    """The ways of one operator.

    Attributes:
        plain: Computes a call without gradients.
        recorded: Computes a call that needs a gradient, in functions that torch records; None: the operator
            records it.
        multiplies: Whether it has products that torch may be set to round; then, the operator computes.
    """

    plain: Callable[..., Any] | None
    recorded: Callable[..., Any] | None = None
    multiplies: bool = False


#: By the name of the registered operator; ``trsm_again`` is ``trsm`` with an L that has been solved with.
WAYS = MappingProxyType(
    {
        "gemm": Way(products.multiply_and_add, products.multiply_and_add, multiplies=True),
        "gemm2": Way(products.multiply, products.multiply, multiplies=True),
        "gemmt": Way(products.multiply_triangle, products.multiply_triangle, multiplies=True),
        "syrk": Way(products.multiply_by_transpose, products.multiply_by_transpose_recorded, multiplies=True),
        "syrk_vjp": Way(products.pull_back_product_with_transpose, multiplies=True),
        "trmm": Way(factors.multiply_by_triangle, products.multiply_by_triangle_recorded, multiplies=True),
        "trsm": Way(factors.solve_with_triangle),
        "trsm_again": Way(factors.solve_with_checked_triangle),
        "makediag": Way(diagonals.make_diagonal, diagonals.make_diagonal),
        "extractdiag": Way(diagonals.extract_diagonal, diagonals.extract_diagonal),
        "maketrian": Way(diagonals.unpack),
        "extracttrian": Way(diagonals.pack),
        "sumlogdiag": Way(diagonals.sum_logs),
        "sumlogdiag_vjp": Way(diagonals.pull_back_logs),
        "copyltu": Way(diagonals.mirror, diagonals.mirror_recorded),
        "potrf": Way(factors.factorise),
        "potrf_ex": Way(factors.factorise_with_status),
        "potrf_vjp": Way(factors.pull_back_factor),
        "potri": Way(factors.invert_from_factor),
        "potri_vjp": Way(factors.pull_back_inverse_from_factor),
        "gesv": Way(factors.solve),
        "inverse": Way(factors.invert),
        "inverse_vjp": Way(factors.pull_back_inverse, multiplies=True),
    }
)
