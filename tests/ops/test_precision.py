"""Products of float32 matrices are not rounded to TF32 or bfloat16, whatever torch's settings say."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch
from device import DEVICE
from rounding import ROUNDED, SETTING, Watching, let_torch_round
from samples import OPERATORS, join_results
from sized import FLAGS, sample
from tolerances import assert_all_close
from torch import Tensor

from lapgrad._torch import precision as _precision


@pytest.fixture
def rounding() -> Iterator[None]:
    with let_torch_round():
        yield


def compute_with_gradients(name: str) -> list[Tensor]:
    one = sample(name, 80, {}, dtype=torch.float32)
    leaves = [arg.detach().clone().requires_grad_() for arg in one.args]
    result = join_results(OPERATORS[name].fn(*leaves, **one.kwargs))
    return [result.detach(), *torch.autograd.grad(result, leaves, torch.ones_like(result))]


@pytest.mark.parametrize("name", FLAGS)
def test_operators(name: str, request: pytest.FixtureRequest) -> None:
    expected = compute_with_gradients(name)
    request.getfixturevalue("rounding")
    assert_all_close(compute_with_gradients(name), expected, 0)


@pytest.mark.parametrize("name", OPERATORS)
def test_derivatives_of_any_order(name: str) -> None:
    """No product is rounded, neither in a formula nor in its derivatives by torch."""
    case = OPERATORS[name]
    one = case.small(dtype=torch.float32)
    leaves = [arg.detach().clone().requires_grad_() for arg in one.args]
    with let_torch_round(), Watching() as watching:
        results = case.fn(*leaves, **one.kwargs)
        for _ in range(3):
            parts = [
                part for part in (results if isinstance(results, tuple) else (results,)) if part.requires_grad
            ]
            if not parts:
                break
            loss = torch.stack([part.sin().sum() for part in parts]).sum()
            results = torch.autograd.grad(loss, leaves, create_graph=True, materialize_grads=True)
    assert not watching.rounded


def test_the_watch_sees_what_is_rounded() -> None:
    A = torch.ones(3, 3, device=DEVICE, requires_grad=True)
    with let_torch_round(), Watching() as watching:
        torch.autograd.grad((A @ A).sum(), A)
    assert len(watching.rounded) == 3


def test_the_last_thread_to_go_restores_the_setting(rounding: None) -> None:
    like = torch.zeros((), device=DEVICE)
    entered, leave = threading.Event(), threading.Event()

    def stay() -> None:
        with _precision.use_full_products(DEVICE.type):
            entered.set()
            leave.wait()

    other = threading.Thread(target=stay)
    other.start()
    entered.wait()
    assert SETTING.fp32_precision == "ieee"
    assert _precision.rounds_products(like)  # the setting of the user, which is restored
    with _precision.use_full_products(DEVICE.type):
        leave.set()
        other.join()
        assert SETTING.fp32_precision == "ieee"
    assert SETTING.fp32_precision == ROUNDED
    assert _precision.rounds_products(like)
    assert not _precision.rounds_products(like.double())
