"""Models on two ranks learn what one process learns from all data; failures of one reach the other."""

from __future__ import annotations

import pytest
from ranks import assert_all_passed

pytestmark = pytest.mark.cpu


@pytest.mark.slow
def test_on_two_ranks(subtests: pytest.Subtests) -> None:
    assert_all_passed(("sparse_gp_on_ranks", "models_on_ranks", "dtensors_on_ranks"), subtests)
