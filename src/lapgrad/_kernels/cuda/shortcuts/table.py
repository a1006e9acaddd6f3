"""The table of shortcuts by operator."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lapgrad._kernels.cuda.shortcuts import diagonals, factors, products


class Shortcut(NamedTuple):
    """The shortcuts of one operator.

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
SHORTCUTS = MappingProxyType({
    "gemm": Shortcut(
        products.multiply_and_add, products.multiply_and_add, True, direct=(torch.addmm, torch.baddbmm)
    ),
    "gemm2": Shortcut(products.multiply, products.multiply, True, direct=(torch.mm, torch.bmm)),
    "gemmt": Shortcut(products.multiply_triangle, products.multiply_triangle, True, products.plan_triangle),
    "syrk": Shortcut(
        products.multiply_by_transpose, products.multiply_by_transpose_recorded, True,
        products.plan_product_with_transpose,
    ),
    "syrk_vjp": Shortcut(products.pull_back_product_with_transpose, None, True),
    "trmm": Shortcut(
        factors.multiply_by_triangle, products.multiply_by_triangle_recorded, True,
        products.plan_product_with_triangle,
    ),
    "trsm": Shortcut(factors.solve_with_triangle),
    "trsm_again": Shortcut(
        factors.solve_with_checked_triangle, planned=factors.plan_solution_with_checked_triangle
    ),
    "makediag": Shortcut(diagonals.make_diagonal, diagonals.make_diagonal, planned=diagonals.plan_diagonal),
    "extractdiag": Shortcut(
        diagonals.extract_diagonal, diagonals.extract_diagonal, planned=diagonals.plan_extracted_diagonal
    ),
    "maketrian": Shortcut(None, planned=diagonals.plan_unpacked),
    "extracttrian": Shortcut(None, planned=diagonals.plan_packed),
    "sumlogdiag": Shortcut(None, planned=diagonals.plan_sum_of_logs),
    "sumlogdiag_vjp": Shortcut(None, planned=diagonals.plan_gradient_of_logs),
    "copyltu": Shortcut(diagonals.mirror, diagonals.mirror, planned=diagonals.plan_mirrored),
    "potrf": Shortcut(factors.factorise),
    "potrf_ex": Shortcut(factors.factorise_with_status),
    "potrf_vjp": Shortcut(factors.pull_back_factor, planned=factors.plan_gradient_of_factor),
    "potri": Shortcut(factors.invert_from_factor),
    "potri_vjp": Shortcut(factors.pull_back_inverse_from_factor),
    "gesv": Shortcut(factors.solve),
    "inverse": Shortcut(factors.invert),
    "inverse_vjp": Shortcut(factors.pull_back_inverse, None, True),
})
# fmt: on
