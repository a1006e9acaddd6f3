"""Steps that are recorded and replayed make the same fit as steps that are not.

Recordings are tapes on the CPU here; ``tests/cuda/models/test_graphs_of_fits.py`` has those of a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from taped import TapeRecorder
from tolerances import RATE_IN_FLOAT32, REPLAYED, assert_all_close, assert_close
from torch import Tensor

from lapgrad import FitError, OptionError
from lapgrad._torch.synchronisation import may_wait
from lapgrad.models import DeepGP, DeepGPRegression
from lapgrad.models._training import cuda_graph as _cuda_graph
from lapgrad.models._training import minibatches as _minibatches

Y = torch.randn(50, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
#: A fitted model, and its losses.
Fit = tuple[torch.nn.Module, list[float]]
#: 50 rows by 20: two whole minibatches and a smaller one.
OPTIONS: dict[str, Any] = {"batch": 20, "every": 6, "generator": 3}


def make_unsupervised(**options: Any) -> DeepGP:
    return DeepGP(Y, [1, 2], **{"inducing": 5, "hidden": [4], "generator": 0, **options})


def fit_model(model: DeepGP, **options: Any) -> tuple[DeepGP, list[float]]:
    return model, model.fit(Y, **{"steps": 24, **OPTIONS, **options}).history


def make_supervised(**options: Any) -> DeepGPRegression:
    return DeepGPRegression(Y[:, :2], Y[:, 2], **{"inducing": 5, "generator": 0, "noise_var": 0.1, **options})


@pytest.fixture
def taped(monkeypatch: pytest.MonkeyPatch) -> Callable[..., TapeRecorder]:
    """Let fits record their steps on a tape; returns a function that makes the recorder."""

    def use(kind: type[TapeRecorder] = TapeRecorder, **options: str) -> TapeRecorder:
        recorder = kind(**options)
        monkeypatch.setattr(_minibatches, "_make_recorder", lambda device: recorder)
        return recorder

    return use


class AsItIs(TapeRecorder):
    """A recorder that records nothing, so that fits use the arithmetic of recorded ones in ordinary steps."""

    def record(self, function: _cuda_graph.Function) -> _cuda_graph.Function:
        return function


def list_parameters(model: torch.nn.Module) -> list[Tensor]:
    return [value.detach() for value in model.parameters()]


def assert_same_fit(found: Fit, expected: Fit, units: float = REPLAYED) -> None:
    losses = [torch.tensor(losses, dtype=torch.float64) for _, losses in (found, expected)]
    assert_close(*losses, units)
    assert_all_close(list_parameters(found[0]), list_parameters(expected[0]), units)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"natural": 0.0},
        {"annealing": 15},
        {"annealing": 15, "samples": 2, "final_lr": 0.5, "lr": 0.02},
    ],
    ids=str,
)
@pytest.mark.parametrize("whiten", [True, False])
def test_replays_make_the_same_fit(
    taped: Callable[..., TapeRecorder], options: dict[str, Any], whiten: bool
) -> None:
    """Rows, random numbers, rates and weights of each step are its own, and not those of the recording."""
    taped(AsItIs)
    expected, losses = fit_model(make_unsupervised(whiten=whiten), **options)
    recorder = taped()
    found, replayed = fit_model(make_unsupervised(whiten=whiten), **options)
    assert_same_fit((found, replayed), (expected, losses))
    # Of 24 steps, 16 are of the one size and 8 of the other.
    assert (recorder.rehearsals, recorder.recordings, recorder.replays) == (6, 2, 18)
    assert recorder.closed == 1


def test_replays_make_the_same_regression(taped: Callable[..., TapeRecorder]) -> None:
    taped(AsItIs)
    expected = make_supervised()
    losses = expected.fit(steps=20, **OPTIONS).history
    recorder = taped()
    found = make_supervised()
    replayed = found.fit(steps=20, **OPTIONS).history
    assert recorder.replays
    assert_same_fit((found, replayed), (expected, losses))


def test_a_tape_notices_numbers_that_stay_behind() -> None:
    """As in a CUDA graph, a Python number keeps its value in a replay, and one in a tensor does not."""
    x, tensor, number = torch.zeros(()), torch.ones(()), 1.0
    function = _cuda_graph.ReplayableFunction(lambda: x.add_(number * tensor) and None, TapeRecorder())
    for _ in range(5):
        function()
    assert function.is_recorded
    assert x.item() == 5.0
    number = 100.0
    tensor.fill_(2.0)
    function()
    assert x.item() == 7.0


def test_a_size_that_is_met_once_is_not_recorded(taped: Callable[..., TapeRecorder]) -> None:
    recorder = taped()
    fit_model(make_unsupervised(), steps=5)
    assert recorder.recordings == 1
    fit_model(make_unsupervised(), steps=3)
    assert recorder.recordings == 1


def test_what_cannot_be_recorded_is_made_step_by_step(
    taped: Callable[..., TapeRecorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    taped(AsItIs)
    expected, losses = fit_model(make_unsupervised())
    recorder = taped(failure="there is a wait")
    found, made = fit_model(make_unsupervised())
    assert recorder.replays == 0
    assert recorder.rehearsals < 6, "the rest of the fit is made without a thought of graphs"
    assert_same_fit((found, made), (expected, losses))
    # With graph=True it is an error, and nothing was learned.
    monkeypatch.setattr(_minibatches, "_check_graph", lambda *_: None)
    model = make_unsupervised()
    before = [value.clone() for value in list_parameters(model)]
    with pytest.raises(OptionError, match=r"graph=True.*cannot be recorded.*there is a wait"):
        fit_model(model, graph=True)
    assert_all_close(list_parameters(model), before, 0)


def test_graphs_are_for_gpus() -> None:
    for model in (make_unsupervised(), make_supervised()):
        data = () if isinstance(model, DeepGPRegression) else (Y,)
        with pytest.raises(OptionError, match=r"graph=True is for models on a CUDA device.*on cpu"):
            model.fit(*data, steps=1, graph=True)
        with pytest.raises(OptionError, match="graph must be True, False or None, got 'yes'"):
            model.fit(*data, steps=1, graph="yes")  # type: ignore[arg-type]
        model.fit(*data, steps=1, graph=False)


def test_no_graphs_if_none_are_wanted(taped: Callable[..., TapeRecorder]) -> None:
    recorder = taped()
    fit_model(make_unsupervised(), graph=False)
    assert recorder.rehearsals == recorder.recordings == 0


def test_callbacks_may_use_the_model(taped: Callable[..., TapeRecorder]) -> None:
    """A callback may predict, compute gradients and draw samples without changing the fit."""
    taped(AsItIs)
    expected, losses = fit_model(make_unsupervised())
    recorder, model = taped(), make_unsupervised()

    def use(step: int, loss: float) -> None:
        model.log_likelihood(Y, samples=2, generator=0)
        model.sample(3)
        model.bound(Y).backward()
        if step == 12:
            model.zero_grad()
        model.state_dict()
        model.eval()
        model.train()

    _, found = fit_model(model, callback=use)
    assert recorder.recordings == 2
    assert_same_fit((model, found), (expected, losses))


def test_callbacks_hear_of_what_fails() -> None:
    """Steps do not wait for errors of the GPU, but operators that a callback calls raise theirs."""
    waited: list[bool] = []
    fit_model(make_unsupervised(), callback=lambda step, loss: waited.append(may_wait()))
    assert waited == [True] * 4


def test_gradients_are_on_in_a_fit() -> None:
    expected = fit_model(make_unsupervised())
    with torch.no_grad():
        assert_same_fit(fit_model(make_unsupervised()), expected, 0)


def test_autocast_rounds_the_weights_of_each_step() -> None:
    """Autocast caches rounded weights while it is on; each step must round the present ones."""

    def fit_rounded(keep: bool) -> Fit:
        model = DeepGP(Y.float(), [1, 2], inducing=5, hidden=[4], generator=0)
        with torch.autocast("cpu", cache_enabled=keep):
            return model, model.fit(Y.float(), steps=24, lr=0.05, **OPTIONS).history

    assert_same_fit(fit_rounded(True), fit_rounded(False), 0)


def test_recordings_do_not_outlive_what_they_were_made_of(taped: Callable[..., TapeRecorder]) -> None:
    """If parameters get new memory, steps move those, and not the old ones."""

    def make_spoiling_callback(model: DeepGP) -> Callable[[int, float], None]:
        def move(step: int, loss: float) -> None:
            if step == 12:
                for value in model.parameters():
                    value.data = value.data.clone()

        return move

    one, other = make_unsupervised(), make_unsupervised()
    taped(AsItIs)
    _, losses = fit_model(one, callback=make_spoiling_callback(one))
    recorder = taped()
    _, found = fit_model(other, callback=make_spoiling_callback(other))
    assert recorder.closed == 2
    assert recorder.recordings > 2
    assert_same_fit((other, found), (one, losses))


def test_a_parameter_that_is_fixed_on_the_way_is_noticed(taped: Callable[..., TapeRecorder]) -> None:
    """A parameter that a callback fixes stays, with recordings as without."""
    for record in (False, True):
        if record:
            taped()
        model = make_unsupervised()
        with pytest.raises(RuntimeError, match="does not require grad"):
            fit_model(model, callback=lambda step, loss, model=model: model.fix("layers.0.noise_var"))


def test_a_callback_that_stops(taped: Callable[..., TapeRecorder]) -> None:
    recorder = taped()
    model = make_unsupervised()
    result = model.fit(Y, steps=24, callback=lambda step, loss: step == 12, **OPTIONS)
    assert result.steps == 12
    assert recorder.closed == 1
    assert all(value.grad is None for value in model.parameters())


def test_failures_restore_parameters_in_their_places(taped: Callable[..., TapeRecorder]) -> None:
    recorder, model = taped(), make_unsupervised()
    places = [value.data_ptr() for value in model.parameters()]
    kept: list[Tensor] = []

    def spoil(step: int, loss: float) -> None:
        if step == 12:
            kept[:] = [value.clone() for value in list_parameters(model)]
            with torch.no_grad():
                model.layers[0].recognition.linear.weight.fill_(torch.nan)

    with pytest.raises(FitError, match="smaller lr"):
        fit_model(model, callback=spoil)
    assert recorder.recordings
    assert recorder.closed == 1
    assert places == [value.data_ptr() for value in model.parameters()]
    assert_all_close(list_parameters(model), kept, 0)


def test_later_steps_do_not_change_a_state() -> None:
    """Later steps, and fits that resume from a state, do not change that state."""
    model, states = make_unsupervised(), list[dict[str, Any]]()

    def averages(state: dict[str, Any]) -> list[Tensor]:
        return [known["exp_avg"].clone() for known in state["optimizer"]["state"].values()]

    def keep(step: int, loss: float) -> None:
        states.append(model.training_state())
        kept.append(averages(states[-1]))

    kept = list[list[Tensor]]()
    fit_model(model, callback=keep)
    fit_model(model, resume=states[0])
    for state, expected in zip(states, kept, strict=True):
        assert_all_close(averages(state), expected, 0)
    assert [float(state["optimizer"]["state"][0]["step"]) for state in states] == [6.0, 12.0, 18.0, 24.0]


@pytest.mark.parametrize(("first", "second"), [(True, True), (True, False), (False, True)])
def test_a_fit_is_taken_up_with_and_without_recordings(
    taped: Callable[..., TapeRecorder], monkeypatch: pytest.MonkeyPatch, first: bool, second: bool
) -> None:
    expected, losses = fit_model(make_unsupervised())
    model = make_unsupervised()
    if first:
        taped()
    fit_model(model, callback=lambda step, loss: step == 12)
    state = model.training_state()
    (group,) = state["optimizer"]["param_groups"]
    assert isinstance(group["lr"], float)
    assert not group["capturable"]
    monkeypatch.undo()
    if second:
        taped()
    _, rest = fit_model(model, resume=state)
    assert_same_fit((model, rest), (expected, losses[2:]), RATE_IN_FLOAT32)


def test_a_recorded_fit_that_is_taken_up_again_is_the_same_fit(taped: Callable[..., TapeRecorder]) -> None:
    taped()
    expected, losses = fit_model(make_unsupervised(), annealing=20)
    model = make_unsupervised()
    fit_model(model, annealing=20, callback=lambda step, loss: step == 12)
    _, rest = fit_model(model, annealing=20, resume=model.training_state())
    assert_same_fit((model, rest), (expected, losses[2:]))


def test_a_state_of_a_gpu_is_taken_up_on_a_cpu() -> None:
    """Adam's moments and counts are loaded; its settings for the device and the generator are not."""
    model = make_unsupervised()
    fit_model(model, steps=12)
    state = model.training_state()
    (group,) = state["optimizer"]["param_groups"]
    elsewhere = {**group, "fused": True, "capturable": True, "lr": torch.tensor(0.5)}
    state["optimizer"] = {**state["optimizer"], "param_groups": [elsewhere]}
    state["generator"] = torch.zeros(16, dtype=torch.uint8)
    result = model.fit(Y, resume=state, **{"steps": 18, **OPTIONS})
    assert result.steps == 18
    (group,) = model.training_state()["optimizer"]["param_groups"]
    assert not group["fused"]
    assert 0.0 < group["lr"] < 3e-3
    steps = {float(known["step"]) for known in model.training_state()["optimizer"]["state"].values()}
    assert steps == {18.0}
