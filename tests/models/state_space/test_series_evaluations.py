"""Losses of state space models without autograd, and starts of their fits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from tolerances import SUMS_OVER_STEPS, assert_close

from lapgrad._kernels import cpu as _cpu
from lapgrad.models import LinearGaussianSSM
from lapgrad.models._state_space import likelihood, starts
from lapgrad.models._state_space.curved_evaluation import CurvedEvaluation
from lapgrad.models._state_space.names import list_descriptors
from lapgrad.models.components import (
    AR,
    Component,
    Cycle,
    HarmonicSeasonal,
    LinearDynamics,
    LocalLevel,
    LocalLinearTrend,
    Seasonal,
)

pytestmark = pytest.mark.cpu

CURVED: dict[str, Callable[[], Component]] = {
    "cycle": lambda: LocalLevel() + Cycle(),
    "stationary cycle": lambda: Cycle(stationary=True) + LocalLevel(),
    "undamped cycle": lambda: LocalLevel() + Cycle(damped=False),
    "AR(1)": lambda: AR(1),
    "AR(3)": lambda: LocalLevel() + AR(3),
    "several": lambda: AR(2) + Seasonal(4) + Cycle(stationary=True) + HarmonicSeasonal(7.5, 2),
}


def make_model(component: Component, *, times: int = 50) -> LinearGaussianSSM:
    y = torch.randn(times, dtype=torch.float64).cumsum(0)
    y[5:8] = torch.nan
    return LinearGaussianSSM(y, component)


def make_evaluation(model: LinearGaussianSSM) -> tuple[likelihood.SeriesEvaluation, list[torch.nn.Parameter]]:
    if not _cpu.is_available():
        pytest.skip("without the core, fits do not use these evaluations")
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    numbers = starts.describe_numbers(list_descriptors(model), learned)
    assert numbers is not None
    made = likelihood.make_evaluation(
        model.matrices, model.y, model._diffuse, learned, numbers, model.component
    )
    return made, learned


@pytest.mark.parametrize("fixed", [None, "variance", "noise_var"])
@pytest.mark.parametrize("name", CURVED)
def test_agrees_with_autograd(name: str, fixed: str | None) -> None:
    model = make_model(CURVED[name]())
    if fixed == "variance":
        parts = [path for path in model.hyperparameters() if path.startswith(("cycle.var", "ar.var"))]
        model.fix(*parts)
    elif fixed is not None:
        model.fix(fixed)
    evaluation, learned = make_evaluation(model)
    assert isinstance(evaluation, CurvedEvaluation)
    x = likelihood.join_parameters(learned) + 0.2 * np.random.default_rng(0).normal(
        size=sum(parameter.numel() for parameter in learned)
    )
    loss, gradient = evaluation(x)
    expected, wanted = likelihood.LossEvaluation(model.loss, learned)(x)
    assert loss == pytest.approx(expected, rel=1e-11)
    assert_close(torch.from_numpy(gradient), torch.from_numpy(wanted), SUMS_OVER_STEPS)


def test_means_of_states_with_a_prior_count_beside_flat_ones() -> None:
    model = make_model(LocalLevel() + LinearDynamics(1, generator=0))
    model.set_values({"dynamics.m": [3.0]})
    evaluation, learned = make_evaluation(model)
    x = likelihood.join_parameters(learned)
    expected, wanted = likelihood.LossEvaluation(model.loss, learned)(x)
    for _ in range(2):  # the second evaluation leaves out checks
        loss, gradient = evaluation(x)
        assert loss == pytest.approx(expected, rel=1e-11)
        assert_close(torch.from_numpy(gradient), torch.from_numpy(wanted), SUMS_OVER_STEPS)


def test_other_parts_are_left_to_autograd() -> None:
    class Turning(Cycle):
        """A cycle whose noise grows with its damping: not linear in the variance."""

        def block(self, times: int):
            block = super().block(times)
            return type(block)(block.A, block.B, block.Q / self.damping, *block[3:])

    evaluation, _ = make_evaluation(make_model(LocalLevel() + Turning()))
    assert type(evaluation) is likelihood.SeriesEvaluation


def test_the_best_common_scale_takes_one_evaluation() -> None:
    """All variances times c: the loss is least where its derivative along c is zero."""
    model = make_model(LocalLinearTrend(0.1, 0.01) + Seasonal(4, 0.1))
    evaluation, learned = make_evaluation(model)
    numbers = starts.describe_numbers(list_descriptors(model), learned)
    x = likelihood.join_parameters(learned)
    count = model._count_observations()
    assert count == 47 - 5
    rescaled = starts.rescale_variances(numbers, count, x, evaluation(x)[1])
    assert rescaled is not None
    moved, change = rescaled
    powers = np.array([number.power for number in numbers])
    loss, gradient = evaluation(moved)
    assert loss < evaluation(x)[0]
    assert abs(loss - evaluation(x)[0] - change) < 1e-9
    assert abs((gradient / powers).sum()) < 1e-6
    assert starts.rescale_variances(numbers, count, moved, gradient) is None
    assert starts.rescale_variances(numbers, 0, x, gradient) is None


@pytest.mark.parametrize("seed", range(4))
def test_fits_are_not_worse_than_fits_from_other_starts(seed: int) -> None:
    random = np.random.default_rng(seed)
    t = np.arange(60)
    y = np.cumsum(random.normal(size=60)) * random.choice([0.01, 1.0]) + random.normal(size=60) + 0.1 * t
    y[random.permutation(60)[:8]] = np.nan
    best = LinearGaussianSSM(torch.from_numpy(y), LocalLinearTrend()).fit().loss
    for _ in range(3):
        level, slope, noise = 10.0 ** random.uniform(-4, 1, 3)
        other = LinearGaussianSSM(torch.from_numpy(y), LocalLinearTrend(level, slope), noise_var=noise)
        assert best < other.fit().loss + 1e-3


def test_series_that_do_not_show_their_states_are_refused() -> None:
    from lapgrad import DomainError

    y = torch.full((40,), torch.nan, dtype=torch.float64)
    y[::4] = torch.randn(10, dtype=torch.float64)
    with pytest.raises(DomainError):
        LinearGaussianSSM(y, Seasonal(4))  # always the same season is seen
    y[1] = y[2] = 1.0
    LinearGaussianSSM(y, Seasonal(4))
