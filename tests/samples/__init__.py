"""One table of cases: every operator, samples over flags, shapes and batches, an oracle in plain torch.

The test files are named after a property (values, derivatives, transforms, layouts, ...) and run over these
rows.
"""

from samples import (
    determinants,
    gelqf,
    gesvd,
    multivariate,
    positive_definite,
    spectral,
    state_space,
    triangles_and_products,
)
from samples.case import MAKERS, SYMMETRIC, Flags, OperatorCase, Recipe, Sample, Shape, join_results

_PARTS = (
    triangles_and_products,
    gelqf,
    positive_definite,
    gesvd,
    determinants,
    spectral,
    multivariate,
    state_space,
)

OPERATORS: dict[str, OperatorCase] = {case.name: case for part in _PARTS for case in part.CASES}

__all__ = [
    "MAKERS",
    "OPERATORS",
    "SYMMETRIC",
    "Flags",
    "OperatorCase",
    "Recipe",
    "Sample",
    "Shape",
    "join_results",
]
