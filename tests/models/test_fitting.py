"""Fitting: where optimisers arrive, when they stop, and what is left when they fail."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tolerances import assert_close
from torch import Tensor, nn

import lapgrad
from lapgrad.models import FitResult, Model
from lapgrad.models._parameters import bounded, positive, unbounded


class Valley(Model):
    """Rosenbrock's function of a and b, from a start of the user."""

    a, b = unbounded(), unbounded()

    def __init__(self, start: tuple[float, float] = (-1.2, 1.0)) -> None:
        super().__init__()
        self.a, self.b = start

    def loss(self) -> Tensor:
        return (1.0 - self.a) ** 2 + 100.0 * (self.b - self.a**2) ** 2

    def config(self) -> dict[str, Any]:
        return {}

    @classmethod
    def from_config(
        cls, config: dict[str, Any], tensors: Mapping[str, Tensor], modules: Mapping[str, nn.Module]
    ) -> Valley:
        return cls()


class Edge(Valley):
    """A loss that fails for a >= 1 as the user chooses; its minimum is at a = 0.9."""

    def __init__(self, beyond: Callable[[Tensor], Tensor], start: float = -50.0) -> None:
        super().__init__((start, 0.0))
        self.beyond = beyond

    def loss(self) -> Tensor:
        return self.beyond(self.a) if self.a >= 1.0 else (self.a - 0.9) ** 2 + self.b**2


def not_positive_definite(a: Tensor) -> Tensor:
    return lapgrad.potrf((1.0 - a).reshape(1, 1))[0, 0]


def nan(a: Tensor) -> Tensor:
    return a * math.nan


def test_lbfgs_finds_the_end_of_the_valley() -> None:
    model = Valley()
    result = model.fit(tolerance=1e-14)
    assert result.converged
    assert result.steps < 80
    assert abs(model.a.item() - 1.0) < 1e-6
    assert abs(model.b.item() - 1.0) < 1e-6
    assert result.loss == model.loss().item() == result.history[-1]
    assert all(later < earlier for earlier, later in zip(result.history, result.history[1:], strict=False))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_lbfgs_stops_where_rounding_decides(dtype: torch.dtype) -> None:
    """Without a tolerance; the loss is a large number whose last digits are noise."""

    class Raised(Valley):
        def loss(self) -> Tensor:
            return 1e3 + super().loss()

    model = Raised().to(dtype)
    result = model.fit(tolerance=0.0)
    assert result.converged
    assert result.steps < 120
    assert abs(model.a.item() - 1.0) < 100.0 * math.sqrt(1e3 * torch.finfo(dtype).eps)


def test_adam_descends_and_counts() -> None:
    model = Valley((0.5, 0.5))
    before = model.loss().item()
    result = model.fit("adam", steps=300, lr=0.02, tolerance=0.0)
    assert result.steps == len(result.history) == 300
    assert not result.converged
    assert "300 steps" in result.reason
    assert result.history[0] == before
    assert model.loss().item() == result.loss < before / 4


def test_adam_leaves_no_gradients_behind() -> None:
    """A later backward of the user would add to gradients that a fit left behind."""
    model = Valley()
    model.fit("adam", steps=5)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_callbacks_may_compute_gradients() -> None:
    plain, used = Valley(), Valley()
    expected = plain.fit("adam", steps=5).history
    assert used.fit("adam", steps=5, callback=lambda step, loss: used.loss().backward()).history == expected
    assert used.fit("adam", steps=5, callback=lambda step, loss: used.zero_grad()).steps == 5


def falling_rate(step: int) -> float:
    return 0.05 * 0.9**step


def test_a_resumed_fit_ends_where_an_uninterrupted_one_does() -> None:
    straight, halves = Valley(), Valley()
    expected = straight.fit("adam", steps=30, lr=falling_rate)
    first = halves.fit("adam", steps=12, lr=falling_rate)
    state = copy.deepcopy(halves.training_state())
    other = Valley((halves.a.item(), halves.b.item()))
    rest = other.fit("adam", steps=30, lr=falling_rate, resume=halves.training_state())
    assert first.history + rest.history == expected.history
    assert rest.steps == 30
    assert [other.a.item(), other.b.item()] == [straight.a.item(), straight.b.item()]
    assert str(halves.training_state()) == str(state), "the state of the caller is not changed"
    done = other.fit("adam", steps=30, lr=falling_rate, resume=other.training_state())
    assert (done.loss, done.history, done.steps) == (expected.loss, [], 30)
    assert other.loss().item() == expected.loss


@pytest.mark.parametrize("interruption", range(1, 40, 3))
def test_a_resumed_search_ends_where_an_uninterrupted_one_does(interruption: int, tmp_path: Path) -> None:
    """L-BFGS is interrupted after a move, within a line search, in the second search, and at its end."""
    straight, halves = Valley(), Valley()
    expected = straight.fit("lbfgs")
    first = halves.fit("lbfgs", steps=interruption)
    torch.save(halves.training_state(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    rest = Valley((halves.a.item(), halves.b.item())).fit("lbfgs", resume=state)
    assert first.history + rest.history == expected.history
    assert (rest.loss, rest.steps, rest.converged) == (expected.loss, expected.steps, True)
    assert str(state) == str(torch.load(tmp_path / "state.pt", weights_only=True)), "it is not changed"


def test_a_callback_can_take_the_state_of_a_search() -> None:
    expected, model, taken = Valley(), Valley(), []
    result = expected.fit("lbfgs")
    model.fit("lbfgs", callback=lambda step, loss: taken.append((step, model.training_state())))
    for step, state in taken:
        assert state["step"] == step
        again = Valley()
        assert again.fit("lbfgs", resume=state).steps == result.steps
        assert torch.equal(again.a, expected.a)


def test_patience_is_part_of_the_state() -> None:
    def flat(step: int) -> float:
        return 1e-12

    straight, halves = Valley().fit("adam", lr=flat), Valley()
    halves.fit("adam", steps=20, lr=flat)
    assert halves.fit("adam", lr=flat, resume=halves.training_state()).steps == straight.steps < 60


def test_a_callback_can_take_the_state_and_copies() -> None:
    expected, model, taken = Valley(), Valley(), []
    expected.fit("adam", steps=20)

    def keep(step: int, loss: float) -> None:
        if step == 7:
            taken.append((copy.deepcopy(model), model.training_state()))

    model.fit("adam", steps=20, callback=keep)
    ((early, state),) = taken
    assert state["step"] == early.training_state()["step"] == 7
    for resume in (state, early.training_state()):
        again = copy.deepcopy(early)
        again.fit("adam", steps=20, resume=resume)
        assert torch.equal(again.a, expected.a)


def test_what_cannot_be_resumed_is_refused() -> None:
    model = Valley()
    model.fit("adam", steps=2)
    state = model.training_state()
    with pytest.raises(lapgrad.OptionError, match="missing entry 'pairs'"):
        model.fit("lbfgs", resume=state)
    with pytest.raises(lapgrad.OptionError, match="only Adam takes a rate"):
        model.fit("lbfgs", lr=falling_rate)
    for name in state:
        with pytest.raises(lapgrad.OptionError, match=f"missing entry '{name}'"):
            model.fit("adam", resume={key: value for key, value in state.items() if key != name})
    with pytest.raises(lapgrad.OptionError, match="does not belong to this model"):
        model.fit("adam", resume={**state, "optimizer": {}})
    with pytest.raises(lapgrad.OptionError, match="other parameters"):
        Line().fit("adam", resume=state)
    model.fit("lbfgs", steps=6)
    state = model.training_state()
    for name in state:
        with pytest.raises(lapgrad.OptionError, match=f"missing entry '{name}'"):
            model.fit("lbfgs", resume={key: value for key, value in state.items() if key != name})
    with pytest.raises(lapgrad.OptionError, match="other parameters"):
        Line().fit("lbfgs", resume=state)
    with contextlib.suppress(lapgrad.FitError):
        model.fit("adam", lr=math.inf)
    with pytest.raises(lapgrad.OptionError, match="cannot be resumed"):
        model.training_state()


class Line(Valley):
    """A network, on points of a line."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Linear(1, 1)
        with torch.no_grad():
            self.network.weight.fill_(0.1)
            self.network.bias.fill_(0.2)

    def loss(self) -> Tensor:
        x = torch.linspace(-1.0, 1.0, 9)[:, None]
        return (self.network(x).float() - 2.0 * x - 1.0).square().sum()


@pytest.mark.parametrize("optimizer", ["lbfgs", "adam"])
def test_autocast_rounds_the_weights_of_each_step(optimizer: str) -> None:
    """Autocast caches rounded weights while it is on; each step must round the present ones."""
    ends = []
    for keep in (True, False):
        model = Line()
        with torch.autocast("cpu", cache_enabled=keep):
            history = model.fit(optimizer, steps=20, lr=0.1).history
            ends.append((history, model.loss().item()))
    assert ends[0] == ends[1]
    assert ends[0][0][-1] < ends[0][0][0]


def test_adam_stops_where_nothing_improves() -> None:
    result = Valley((1.0, 1.0)).fit("adam")
    assert result.converged
    assert result.steps == 51


def test_limit_of_lbfgs_counts_evaluations() -> None:
    evaluations = 0

    class Counting(Valley):
        def loss(self) -> Tensor:
            nonlocal evaluations
            evaluations += 1
            return super().loss()

    model = Counting()
    result = model.fit(steps=7)
    assert evaluations == result.steps == 7
    assert not result.converged
    assert model.loss().item() == result.loss


@pytest.mark.parametrize("beyond", [not_positive_definite, nan])
def test_line_search_comes_back_from_where_the_loss_is_undefined(beyond: Callable[[Tensor], Tensor]) -> None:
    model = Edge(beyond)
    result = model.fit(lr=200.0)
    assert result.converged
    assert abs(model.a.item() - 0.9) < 1e-3


@pytest.mark.parametrize("beyond", [not_positive_definite, nan])
@pytest.mark.parametrize("optimizer", ["lbfgs", "adam"])
def test_failure_at_the_start_says_so(optimizer: str, beyond: Callable[[Tensor], Tensor]) -> None:
    model = Edge(beyond, start=2.0)
    with pytest.raises(lapgrad.FitError, match=r"Edge\.fit: step 1: ") as caught:
        model.fit(optimizer)
    assert caught.value.step == 1
    assert model.a.item() == 2.0


@pytest.mark.parametrize("beyond", [not_positive_definite, nan])
def test_failure_on_the_way_restores_the_last_good_parameters(beyond: Callable[[Tensor], Tensor]) -> None:
    model = Edge(beyond, start=-1.0)
    seen = []

    def record(step: int, loss: float) -> None:
        seen.append(model.a.item())

    with pytest.raises(lapgrad.FitError, match="The parameters are those of step") as caught:
        model.fit("adam", lr=0.7, callback=record)
    assert caught.value.step == len(seen) + 1 > 2
    assert model.a.item() == seen[-1] < 1.0


@pytest.mark.parametrize("optimizer", ["lbfgs", "adam"])
def test_callback_stops(optimizer: str) -> None:
    result = Valley().fit(optimizer, callback=lambda step, loss: step >= 3)
    assert not result.converged
    assert "callback" in result.reason
    assert 3 <= result.steps < 10


def test_fixed_parameters_stay() -> None:
    model = Valley()
    model.fix("a")
    model.fit()
    assert model.a.item() == -1.2
    assert abs(model.b.item() - 1.44) < 1e-6
    model.free("a")
    model.fit()
    assert model.a.item() != -1.2
    model.fix()
    with pytest.raises(lapgrad.OptionError, match="nothing to fit"):
        model.fit()
    with pytest.raises(lapgrad.OptionError, match="'a', 'b'"):
        model.fix("c")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"optimizer": "sgd"}, "'lbfgs', 'adam'"),
        ({"steps": 0}, "a positive integer"),
        ({"tolerance": -1.0}, "tolerance"),
        ({"lr": math.nan}, "lr"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(lapgrad.OptionError, match=message):
        Valley().fit(**arguments)


def test_progress_shows_the_loss(capsys: pytest.CaptureFixture[str]) -> None:
    result = Valley((0.9, 0.8)).fit(progress=True)
    shown = capsys.readouterr().out
    assert "Valley" in shown
    assert f"loss {result.loss:.6g}" in shown


@pytest.mark.parametrize(
    ("package", "call"),
    [
        ("rich", lambda: Valley().fit(progress=True)),
        ("matplotlib", lambda: FitResult(0.0, [0.0], 1, True, "", 0.0).plot()),
    ],
)
def test_missing_packages_are_named(
    package: str, call: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, package, None)
    with pytest.raises(lapgrad.MissingDependencyError, match=f"pip install {package}"):
        call()


class Units(Valley):
    scale, share = positive(), bounded(-1.0, 3.0)

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.share = [0.5, 2.0], 0.0


def test_hyperparameters_are_set_and_read_in_their_own_units() -> None:
    model = Units()
    assert_close(model.scale.detach(), torch.tensor([0.5, 2.0], dtype=torch.float64))
    model.scale = 4.0
    assert_close(model.hyperparameters()["scale"], torch.tensor([4.0, 4.0], dtype=torch.float64))
    assert_close(model.raw_scale.detach(), torch.full((2,), math.log(4.0), dtype=torch.float64))
    model.share = torch.tensor(2.5)
    assert_close(model.share.detach(), torch.tensor(2.5, dtype=torch.float64))
    assert torch.autograd.grad(model.scale.sum(), model.raw_scale)[0].tolist() == pytest.approx([4.0, 4.0])


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("scale", 0.0, "scale must be positive"),
        ("scale", [1.0, math.inf], "scale must be positive"),
        ("share", 3.0, "share must be between -1 and 3"),
        ("share", math.nan, "share must be between"),
        ("scale", [1.0, 2.0, 3.0], r"scale has shape \(2,\), got a value of shape \(3,\)"),
    ],
)
def test_values_outside_are_refused(name: str, value: Any, message: str) -> None:
    model = Units()
    before = getattr(model, name).detach()
    with pytest.raises(ValueError, match=message):
        setattr(model, name, value)
    assert torch.equal(getattr(model, name), before)
