"""Which operator has which way."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lapgrad._kernels.cuda.ways import diagonals, factors, products


class Way(NamedTuple):
    """The ways of one operator.

    Attributes:
        plain: Computes a call without gradients.
        recorded: Computes a call that needs a gradient, in functions that torch records; None: the operator
            records it.
        multiplies: Whether it has products that torch may be set to round; then, the operator computes.
        planned: See ``planned.py``; where it does not serve, ``plain`` computes.
        direct: torch's functions for one matrix and for a batch that compute the call without flags, with a
            gradient and without; a matrix to add comes first there.
    """

    plain: Callable[..., Any] | None
    recorded: Callable[..., Any] | None = None
    multiplies: bool = False
    planned: Callable[..., Any] | None = None
    direct: tuple[Callable[..., Tensor], Callable[..., Tensor]] | None = None


# fmt: off
#: By the name of the registered operator; ``trsm_again`` is ``trsm`` with an L that has been solved with.
WAYS = MappingProxyType({
    "gemm": Way(
        products.multiply_and_add, products.multiply_and_add, True, direct=(torch.addmm, torch.baddbmm)
    ),
    "gemm2": Way(products.multiply, products.multiply, True, direct=(torch.mm, torch.bmm)),
    "gemmt": Way(products.multiply_triangle, products.multiply_triangle, True, products.plan_triangle),
    "syrk": Way(
        products.multiply_by_transpose, products.multiply_by_transpose_recorded, True,
        products.plan_product_with_transpose,
    ),
    "syrk_vjp": Way(products.pull_back_product_with_transpose, None, True),
    "trmm": Way(
        factors.multiply_by_triangle, products.multiply_by_triangle_recorded, True,
        products.plan_product_with_triangle,
    ),
    "trsm": Way(factors.solve_with_triangle),
    "trsm_again": Way(
        factors.solve_with_checked_triangle, planned=factors.plan_solution_with_checked_triangle
    ),
    "makediag": Way(diagonals.make_diagonal, diagonals.make_diagonal, planned=diagonals.plan_diagonal),
    "extractdiag": Way(
        diagonals.extract_diagonal, diagonals.extract_diagonal, planned=diagonals.plan_extracted_diagonal
    ),
    "maketrian": Way(None, planned=diagonals.plan_unpacked),
    "extracttrian": Way(None, planned=diagonals.plan_packed),
    "sumlogdiag": Way(None, planned=diagonals.plan_sum_of_logs),
    "sumlogdiag_vjp": Way(None, planned=diagonals.plan_gradient_of_logs),
    "copyltu": Way(diagonals.mirror, diagonals.mirror, planned=diagonals.plan_mirrored),
    "potrf": Way(factors.factorise),
    "potrf_ex": Way(factors.factorise_with_status),
    "potrf_vjp": Way(factors.pull_back_factor, planned=factors.plan_gradient_of_factor),
    "potri": Way(factors.invert_from_factor),
    "potri_vjp": Way(factors.pull_back_inverse_from_factor),
    "gesv": Way(factors.solve),
    "inverse": Way(factors.invert),
    "inverse_vjp": Way(factors.pull_back_inverse, None, True),
})
# fmt: on
