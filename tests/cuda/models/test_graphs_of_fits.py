"""Fits of deep models whose steps are CUDA graphs: the same fits as without graphs, in less time."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest
import tolerances
import torch
import waits
from torch import Tensor, nn

from lapgrad import FitError, OptionError
from lapgrad.models import DeepGP, DeepGPRegression
from lapgrad.models._training import cuda_graph as _cuda_graph
from lapgrad.models._training import minibatches as _minibatches
from lapgrad.models.kernels import RBF
from lapgrad_bench.bench.models import deep_gp

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

SIZES = deep_gp.Sizes((3, 6), 200, 30, 50, (30,))
#: Of 200 rows: two whole minibatches and a smaller one in each pass.
OPTIONS: dict[str, Any] = {"batch": 80, "every": 10, "generator": 3, "lr": 1e-3}


@pytest.fixture(autouse=True)
def replays(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many replays each graph has made."""
    made: list[int] = []
    recorded = _cuda_graph.CudaRecorder.record

    def counting(self: _cuda_graph.CudaRecorder, function: _cuda_graph.Function) -> _cuda_graph.Function:
        replay = recorded(self, function)
        number = len(made)
        made.append(0)

        def replay_and_count() -> None:
            made[number] += 1
            replay()

        return replay_and_count

    monkeypatch.setattr(_cuda_graph.CudaRecorder, "record", counting)
    return made


def make_problem(dtype: torch.dtype = torch.float64) -> tuple[DeepGP, Tensor]:
    made = deep_gp.Problem.generate(SIZES, torch.device("cpu"))
    return made.model.to(device="cuda", dtype=dtype), made.Y.to("cuda", dtype)


def fit_model(steps: int = 40, **options: Any) -> tuple[DeepGP, list[float]]:
    model, Y = make_problem(options.pop("dtype", torch.float64))
    return model, model.fit(Y, **{"steps": steps, **OPTIONS, **options}).history


def assert_same_fit(
    found: tuple[nn.Module, list[float]], expected: tuple[nn.Module, list[float]], units: float
) -> None:
    losses = [torch.tensor(losses, dtype=torch.float64) for _, losses in (found, expected)]
    tolerances.assert_close(*losses, units)
    values = [[value.detach() for value in model.parameters()] for model, _ in (found, expected)]
    tolerances.assert_all_close(*values, units)


@pytest.mark.parametrize(
    "options", [{}, {"natural": 0.0}, {"annealing": 25}, {"samples": 2, "final_lr": 0.5}], ids=str
)
def test_graphs_make_the_same_fit(replays: list[int], options: dict[str, Any]) -> None:
    """27 steps have 80 rows, 13 have 40: two graphs, each recorded after three ordinary steps."""
    expected = fit_model(**options, graph=False)
    assert not replays
    found = fit_model(**options, graph=True)
    assert replays == [24, 10]
    assert_same_fit(found, expected, tolerances.ON_A_DEVICE)


def test_graphs_make_the_same_fit_in_float32(replays: list[int]) -> None:
    expected = fit_model(20, dtype=torch.float32, graph=False)
    _, losses = fit_model(20, dtype=torch.float32)
    assert replays
    found, wanted = (torch.tensor(each) for each in (losses, expected[1]))
    tolerances.assert_close(found, wanted, tolerances.FLOAT32_LAYER)


def fit_regression(widths: tuple[int, ...] = (2,), **options: Any) -> tuple[DeepGPRegression, list[float]]:
    source = torch.Generator().manual_seed(0)
    X = torch.rand(200, 2, dtype=torch.float64, generator=source).cuda()
    y = torch.sin(6.0 * X.sum(1))
    model = DeepGPRegression(X, y, widths=widths, inducing=10, noise_var=0.1, generator=0)
    return model, model.fit(steps=40, **OPTIONS, **options).history


def test_graphs_make_the_same_regression(replays: list[int]) -> None:
    expected, found = fit_regression(graph=False), fit_regression(graph=True)
    assert replays == [24, 10]
    assert_same_fit(found, expected, tolerances.ON_A_DEVICE)


def test_replays_do_not_wait(monkeypatch: pytest.MonkeyPatch, replays: list[int]) -> None:
    moved = _minibatches.TrainingRun.take_step

    def take_step_without_waiting(self: _minibatches.TrainingRun) -> None:
        if len(replays) < 2:  # recording a graph waits for the device
            return moved(self)
        with waits.forbid_waits():
            return moved(self)

    monkeypatch.setattr(_minibatches.TrainingRun, "take_step", take_step_without_waiting)
    fit_model()
    assert sum(replays) == 34


def test_a_failure_is_found_at_the_next_look(replays: list[int]) -> None:
    model, Y = make_problem()
    kept: list[Tensor] = []

    def spoil(step: int, loss: float) -> None:
        if step == 20:
            kept[:] = [value.detach().clone() for value in model.parameters()]
            with torch.no_grad():
                model.layers[0].functions.raw_inducing.fill_(torch.nan)

    with pytest.raises(FitError, match="NaN or infinity"):
        model.fit(Y, steps=60, callback=spoil, **OPTIONS)
    assert replays
    tolerances.assert_all_close([value.detach() for value in model.parameters()], kept, 0)
    assert model.bound(Y, generator=torch.Generator("cuda")).isfinite()


def test_fits_are_taken_up_again(replays: list[int]) -> None:
    """The first half of a fit with or without graphs, the second half with or without; also from a file."""
    expected = fit_model(graph=False)
    for first, second in ((True, True), (True, False), (False, True)):
        model, Y = make_problem()
        model.fit(Y, steps=40, callback=lambda step, _: step == 20, graph=first, **OPTIONS)
        rest = model.fit(Y, steps=40, resume=model.training_state(), graph=second, **OPTIONS).history
        assert_same_fit((model, rest), (expected[0], expected[1][2:]), tolerances.ON_A_DEVICE)


def test_a_fit_with_graphs_is_taken_up_on_a_cpu() -> None:
    model, Y = make_problem()
    model.fit(Y, steps=20, **OPTIONS)
    state = model.training_state()
    model.cpu()
    assert model.fit(Y.cpu(), steps=30, resume=state, **OPTIONS).steps == 30


def test_callbacks_may_use_the_model(replays: list[int]) -> None:
    expected = fit_model(graph=False)
    model, Y = make_problem()

    def use(step: int, loss: float) -> None:
        model.log_likelihood(Y, samples=5, generator=0)
        model.reconstruct(Y)
        torch.empty(1 << 20, device="cuda").fill_(torch.nan)
        model.bound(Y, generator=torch.Generator("cuda")).backward()
        if step == 20:
            model.zero_grad()
        torch.cuda.empty_cache()

    history = model.fit(Y, steps=40, callback=use, graph=True, **OPTIONS).history
    assert len(replays) == 2
    assert_same_fit((model, history), expected, tolerances.ON_A_DEVICE)


def test_parameters_that_have_moved_are_recorded_again(replays: list[int]) -> None:
    def moving(model: DeepGP) -> Callable[[int, float], None]:
        def move(step: int, loss: float) -> None:
            if step == 20:
                model.cpu()
                model.cuda()

        return move

    expected, found = make_problem(), make_problem()
    losses = [
        model.fit(Y, steps=60, callback=moving(model), graph=graph, **OPTIONS).history
        for (model, Y), graph in ((expected, False), (found, True))
    ]
    assert len(replays) == 4
    assert_same_fit((found[0], losses[1]), (expected[0], losses[0]), tolerances.ON_A_DEVICE)


class Waiting(RBF):
    """A kernel that reads a number back."""

    def forward(self, *arguments: Any, **options: Any) -> Tensor:
        assert self.raw_variance.item() < 1e10
        return super().forward(*arguments, **options)


def test_a_kernel_that_waits_is_not_recorded(replays: list[int]) -> None:
    expected = fit_model(graph=False)
    _, Y = make_problem()
    model = DeepGP(Y, SIZES.widths, inducing=30, hidden=[30], kernels=[Waiting(), Waiting()], generator=0)
    model.fit(Y, steps=20, **OPTIONS)
    assert not replays
    with pytest.raises(OptionError, match=r"graph=True.*cannot be recorded .*test_graphs_of_fits.py, line"):
        model.fit(Y, steps=20, graph=True, **OPTIONS)
    again = fit_model(graph=True)
    assert_same_fit(again, expected, tolerances.ON_A_DEVICE)


def test_a_recording_that_fails_leaves_everything_in_order(replays: list[int]) -> None:
    """The kernel reads from the device, which a recording does not allow."""
    _, Y = make_problem()
    model = DeepGP(Y, SIZES.widths, inducing=30, hidden=[30], kernels=[Waiting(), Waiting()], generator=0)
    model.fit(Y, steps=20, **OPTIONS)
    assert not replays
    # The default generator, the allocator and the current stream are those of before.
    assert torch.randn(10, device="cuda").isfinite().all()
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    torch.cuda.empty_cache()
    assert_same_fit(fit_model(graph=True), fit_model(graph=False), tolerances.ON_A_DEVICE)


class Dropped(nn.Module):
    """A mean with dropout, from torch's own generator."""

    def forward(self, H: Tensor) -> Tensor:
        return nn.functional.dropout(H[..., :1], 0.5)


def test_dropout_is_drawn_in_each_replay() -> None:
    """With all rows in each step and a tiny learning rate, only dropout makes losses differ."""
    model, _ = fit_regression((), graph=False)
    model.layers[-1].mean = Dropped()
    losses: list[float] = []
    model.fit(
        steps=40, graph=True, every=1, batch=200, lr=1e-12, callback=lambda _, loss: losses.append(loss)
    )
    assert len({f"{loss:.6g}" for loss in losses[5:]}) > 30


def list_memory_pools() -> set[Any]:
    """Memory pools that are not torch's own."""
    gc.collect()
    torch.cuda.empty_cache()
    return {segment["segment_pool_id"] for segment in torch.cuda.memory_snapshot()} - {(0, 0)}


def test_memory_is_given_back(replays: list[int]) -> None:
    model, Y = make_problem()
    model.fit(Y, steps=20, **OPTIONS)
    del replays[:]
    before = list_memory_pools()
    model.fit(Y, steps=20, **OPTIONS)
    assert replays
    assert list_memory_pools() <= before
    assert all(value.grad is None for value in model.parameters())


def test_fits_in_two_threads() -> None:
    expected = fit_model(graph=False)
    found: list[Any] = []

    def work() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            try:
                found.append(fit_model(graph=True))
            except Exception as error:  # raised in the main thread below
                found.append(error)
            torch.cuda.current_stream().synchronize()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for each in found:
        if isinstance(each, Exception):
            raise each
        assert_same_fit(each, expected, tolerances.ON_A_DEVICE)
