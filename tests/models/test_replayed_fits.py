"""Fits that replay a recording of their loss: the same figures as without one, also after failures."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import tolerances
import torch
from torch import Tensor, nn

from lapgrad import NotPositiveDefiniteError
from lapgrad._exceptions import OptionError
from lapgrad.fused._sgp import evaluation as _sgp_evaluation
from lapgrad.fused._sgp import gradient as _gradient
from lapgrad.models import SparseGPRegression
from lapgrad.models._training import cuda_graph as _cuda_graph
from lapgrad.models._training import evaluation as _evaluation
from lapgrad.models._training import fitting as _fitting
from lapgrad.models.kernels import RBF, Linear

DOUBLE = torch.float64


class Repeating:
    """A recorder for the CPU whose recordings just call the function."""

    def __init__(self, refuses: bool = False) -> None:
        self.recording, self.refuses = False, refuses
        self.recordings = self.closed = 0

    def enter_side_stream(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def record(self, function: Callable[[], None]) -> Callable[[], None]:
        if self.refuses:
            raise _cuda_graph.CannotCaptureError("it waits for the device")
        self.recordings += 1
        return function

    def close(self) -> None:
        self.closed += 1


@contextlib.contextmanager
def replay_evaluations(refuses: bool = False) -> Iterator[Repeating]:
    """Let fits on the CPU use replayed evaluations, as on a GPU."""
    recorder = Repeating(refuses)

    def evaluation(module: nn.Module, loss: Any, parameters: Any) -> _evaluation.ReplayedEvaluation:
        return _evaluation.ReplayedEvaluation(module, loss, parameters, recorder)

    with (
        mock.patch.object(_fitting, "_make_evaluation", evaluation),
        mock.patch.object(_gradient, "_defers_checks", return_value=True),
    ):
        yield recorder


def data() -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(0)
    X = torch.rand(80, 2, dtype=DOUBLE, generator=source)
    return X, torch.sin(5.0 * X[:, 0]) + 0.1 * torch.randn(80, dtype=DOUBLE, generator=source)


def model(noise: float = 0.1, **options: Any) -> SparseGPRegression:
    return SparseGPRegression(*data(), inducing=12, noise_var=noise, generator=0, normalise=False, **options)


@pytest.mark.parametrize("optimizer", ["adam", "lbfgs"])
def test_same_fit(optimizer: str) -> None:
    plain, replayed = model(), model()
    expected = plain.fit(optimizer, steps=12)
    with replay_evaluations() as recorder:
        found = replayed.fit(optimizer, steps=12)
    assert (recorder.recordings, recorder.closed) == (1, 1)
    assert found.steps == expected.steps
    tolerances.assert_close(torch.tensor(found.history), torch.tensor(expected.history), tolerances.INDUCING)
    for one, other in zip(replayed.parameters(), plain.parameters(), strict=True):
        tolerances.assert_close(one, other, tolerances.OF_JITTER)


def test_what_cannot_be_recorded_is_evaluated() -> None:
    plain, replayed = model(), model()
    expected = plain.fit("adam", steps=8)
    with replay_evaluations(refuses=True) as recorder:
        found = replayed.fit("adam", steps=8)
    assert recorder.recordings == 0
    tolerances.assert_close(torch.tensor(found.history), torch.tensor(expected.history), tolerances.INDUCING)


def test_recordings_do_not_outlive_what_they_were_made_of() -> None:
    """A callback may send the model to another device and back."""
    replayed = model()

    def move(step: int, loss: float) -> None:
        if step == 6:
            for value in replayed.parameters():
                value.data = value.data.clone()

    with replay_evaluations() as recorder:
        replayed.fit("adam", steps=12, callback=move)
    assert (recorder.recordings, recorder.closed) == (2, 2)


def test_solves_replace_an_inverse_that_is_too_imprecise() -> None:
    """If the first evaluation finds that products by an inverse are too imprecise, solves are recorded."""
    plain, replayed = (model(1e-7, jitter=1e-10, init="kmeans++") for _ in range(2))
    expected = plain.fit("adam", steps=10, lr=1e-4)
    with replay_evaluations() as recorder:
        found = replayed.fit("adam", steps=10, lr=1e-4)
    assert recorder.closed == 2  # once when solves replace the inverse, once in the end
    assert recorder.recordings == 1
    tolerances.assert_close(torch.tensor(found.history), torch.tensor(expected.history), tolerances.OF_JITTER)


def test_jitter_is_found_without_a_recording() -> None:
    """Replays that fail are repeated without a recording; after some failures recording stops."""
    replayed, calls = model(), 0
    loss = type(replayed).loss

    def fails_when_recorded(self: SparseGPRegression) -> Tensor:
        nonlocal calls
        calls += 1
        if self.evaluation.deferred is not None:
            checks = mock.Mock()
            checks.are_passed.side_effect = NotPositiveDefiniteError("it is not", (), 1)
            value = loss(self)
            self.evaluation.deferred.append(checks)
            return value
        value = loss(self)
        self.jitter = 1e-9
        return value

    with replay_evaluations(), mock.patch.object(SparseGPRegression, "loss", fails_when_recorded):
        evaluation = _fitting._make_evaluation(replayed, replayed.loss, list(replayed.parameters()))
        for _ in range(10):
            evaluation()
            assert replayed.jitter == 1e-9
    assert calls == _evaluation._PATIENCE * 2 + 5


def test_whose_code_is_recorded() -> None:
    class Own(nn.Module):
        def forward(self, X: Tensor) -> Tensor:
            return X

    assert model().replayable
    assert model(kernel=RBF() + Linear()).replayable
    own = RBF()
    own.add_module("transform", Own())
    assert not model(kernel=own).replayable

    class OwnModel(SparseGPRegression):
        pass

    assert not OwnModel(*data(), inducing=5, generator=0).replayable


def test_capture_by_users_is_refused() -> None:
    evaluation, like = _sgp_evaluation.Evaluation(), torch.zeros(1, dtype=DOUBLE)
    checks = _sgp_evaluation.DeferredChecks("sgp_nll", 1e-6, like, evaluation, None)
    assert not checks.hand_over()
    with (
        mock.patch.object(torch.cuda, "is_current_stream_capturing", return_value=True),
        mock.patch.object(_sgp_evaluation.Tensor, "is_cuda", True, create=True),
        pytest.raises(OptionError, match="cannot be captured"),
    ):
        checks.hand_over()
    with evaluation.defer_checks() as collected:
        assert checks.hand_over()
    assert collected == [checks]
