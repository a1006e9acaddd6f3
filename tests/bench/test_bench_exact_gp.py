"""The benchmark of exact Gaussian processes: torch and lapgrad compute the same."""

from __future__ import annotations

import pytest
from tolerances import HIGHER_ORDER, assert_close

from lapgrad_bench.bench.models import exact_gp


@pytest.mark.parametrize("kernel", exact_gp.KERNELS)
def test_peers_agree(kernel: str) -> None:
    problem = exact_gp.Problem.generate(40, 2, kernel)
    own = exact_gp.make_lapgrad_evaluation(problem)()
    other = exact_gp.make_torch_evaluation(problem)()
    assert_close(own[0], other[0], HIGHER_ORDER)
    # Of the model: noise above its floor, lengthscales, variance.
    assert_close(own[2], other[1], HIGHER_ORDER)
    assert_close(own[3], other[2], HIGHER_ORDER)
