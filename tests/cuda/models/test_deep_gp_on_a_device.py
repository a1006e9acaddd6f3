"""Deep Gaussian processes on a GPU: the same figures as on the CPU, and no step that waits for the device."""

from __future__ import annotations

from pathlib import Path

import pytest
import tolerances
import torch
import waits

from lapgrad import FitError
from lapgrad._torch.synchronisation import without_waiting
from lapgrad.models import DeepGP
from lapgrad.models._training import minibatches as _minibatches
from lapgrad_bench.bench.models import deep_gp

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

SIZES = deep_gp.Sizes((3, 6), 200, 100, 50, (30,))


def make_problem_on(device: str, dtype: torch.dtype = torch.float32) -> deep_gp.Problem:
    """Return the same model, data and noise on a device."""
    problem = deep_gp.Problem.generate(SIZES, torch.device("cpu"))
    model = problem.model.to(device=device, dtype=dtype)
    return deep_gp.Problem(
        model, problem.Y.to(device, dtype), [eps.to(device, dtype) for eps in problem.noise]
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_and_gradients_are_those_of_the_cpu(dtype: torch.dtype) -> None:
    """The terms are computed in the dtype of the model, and summed in float64."""
    here, there = (
        deep_gp.make_lapgrad_evaluation(make_problem_on(device, dtype))() for device in ("cpu", "cuda")
    )
    units = tolerances.FLOAT32_LAYER if dtype == torch.float32 else tolerances.INDUCING
    found, expected = ([tensor.to("cpu", dtype) for tensor in each] for each in (there, here))
    tolerances.assert_all_close(found, expected, units)


def test_steps_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two checks of the loss nothing in a step without CUDA graphs waits for the device."""
    problem = make_problem_on("cuda")
    model, Y = problem.model, problem.Y
    model.fit(Y, steps=3, batch=50, generator=0)  # compiles, makes handles
    moved = _minibatches.TrainingRun.take_step

    def moved_without_waiting(self: _minibatches.TrainingRun) -> None:
        with waits.forbid_waits():
            moved(self)

    monkeypatch.setattr(_minibatches.TrainingRun, "take_step", moved_without_waiting)
    model.fit(Y, steps=20, batch=50, every=10, generator=0, graph=False)


def test_bound_and_gradient_do_not_wait() -> None:
    evaluate = deep_gp.make_lapgrad_evaluation(make_problem_on("cuda"))
    evaluate()
    torch.cuda.synchronize()
    with waits.forbid_waits(), without_waiting():
        evaluate()


def test_learning_and_files(tmp_path: Path) -> None:
    problem = make_problem_on("cuda")
    model, Y = problem.model, problem.Y
    result = model.fit(Y, steps=60, batch=50, every=20, generator=0)
    assert result.history[-1] < result.history[0]
    found = model.log_likelihood(Y, samples=20, generator=0)
    assert found.values.is_cuda
    assert model.sample(4, generator=0).is_cuda
    model.save(tmp_path / "model.pt")
    here = DeepGP.load(tmp_path / "model.pt", device="cpu")
    tolerances.assert_close(here.reconstruct(Y.cpu()), model.reconstruct(Y).cpu(), tolerances.FLOAT32_LAYER)
    again = DeepGP.load(tmp_path / "model.pt")
    again.fit(Y, steps=80, batch=50, resume=model.training_state())


def test_a_failure_is_found_at_the_next_look() -> None:
    problem = make_problem_on("cuda")

    def spoil(step: int, loss: float) -> None:
        if step == 5:
            with torch.no_grad():
                problem.model.layers[0].functions.raw_inducing.fill_(torch.nan)

    with pytest.raises(FitError, match="NaN or infinity"):
        problem.model.fit(problem.Y, steps=20, batch=50, every=5, generator=0, callback=spoil)
