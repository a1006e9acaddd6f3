"""Fits on busy cores: evaluations take fewer threads, also those of torch's own operations."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
import torch

from lapgrad._kernels import cpu as _cpu
from lapgrad.models import GPRegression, VariationalGP, likelihoods
from lapgrad.models._training.thread_choice import ThreadChoice

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(not _cpu.is_available(), reason="needs the compiled core"),
]


@pytest.fixture
def retreat() -> Iterator[Callable[[], None]]:
    """A function that makes the core use one of two threads for a while."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    _cpu.core.configure_contention(True, 0)
    yield _cpu.core.retreat_now
    torch.set_num_threads(threads)
    _cpu.core.configure_contention(False, 0)


def test_evaluations_of_a_fit_try_one_thread_in_a_retreat(retreat: Callable[[], None]) -> None:
    seen = []

    class WatchedRegression(GPRegression):
        def loss(self) -> torch.Tensor:
            seen.append(torch.get_num_threads())
            retreat()
            return super().loss()

    x = torch.linspace(0.0, 6.0, 20, dtype=torch.float64)
    model = WatchedRegression(x, x.sin())
    model.fit(steps=3, starts=1)
    assert 1 in seen[:2]  # both numbers are tried
    assert torch.get_num_threads() == 2


def test_steps_on_minibatches_choose_their_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    held = []
    hold = ThreadChoice.hold
    monkeypatch.setattr(ThreadChoice, "hold", lambda choice: held.append(choice) or hold(choice))
    x = torch.linspace(0.0, 6.0, 20, dtype=torch.float64)
    VariationalGP(x, x.sin(), likelihoods.Gaussian(), inducing=5, generator=0).fit(epochs=1, batch=10)
    assert len(held) == 2


def test_threads_come_back_after_an_error(retreat: Callable[[], None]) -> None:
    retreat()
    seen = []

    def fail() -> None:
        seen.append(torch.get_num_threads())
        raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"), ThreadChoice().hold():
        fail()
    assert (*seen, torch.get_num_threads()) == (1, 2)


def test_new_threads_of_a_program_begin_with_the_number_of_torch(retreat: Callable[[], None]) -> None:
    seen = []

    def evaluate() -> None:
        retreat()
        with ThreadChoice().hold():
            seen.append(torch.get_num_threads())
        seen.append(torch.get_num_threads())

    thread = threading.Thread(target=evaluate)
    thread.start()
    thread.join()
    assert seen == [1, 2]


def test_the_faster_number_of_threads_is_taken(retreat: Callable[[], None]) -> None:
    times = [0.0]
    choice = ThreadChoice(lambda: times[-1])

    def evaluate(seconds: float) -> int:
        retreat()
        with choice.hold():
            times.append(times[-1] + seconds)
            return torch.get_num_threads()

    # Two threads are slower than one took, so one is taken again.
    assert [evaluate(seconds) for seconds in (3.0, 2.0, 5.0, 1.0)] == [1, 2, 2, 1]


def test_a_quiet_machine_keeps_all_threads(retreat: Callable[[], None]) -> None:
    retreat()
    _cpu.core.configure_contention(False, 0)
    with ThreadChoice().hold():
        assert torch.get_num_threads() == 2
