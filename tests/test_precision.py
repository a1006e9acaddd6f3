"""float32 products are those of float32, whatever torch was told about networks."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch
from device import DEVICE
from samples import OPERATORS, joined
from sized import FLAGS, sample
from tolerances import assert_all_close
from torch import Tensor

from lapgrad import _precision

#: What rounds products most: 10 or 7 bits in place of 23. A CPU without such products ignores it.
ROUNDED = {"cuda": "tf32", "cpu": "bf16"}[DEVICE.type]
SETTING = _precision._SETTINGS[DEVICE.type]


@pytest.fixture
def rounding() -> Iterator[None]:
    before = SETTING.fp32_precision
    SETTING.fp32_precision = ROUNDED
    yield
    assert SETTING.fp32_precision == ROUNDED  # as it was found
    SETTING.fp32_precision = before


def with_gradients(name: str) -> list[Tensor]:
    one = sample(name, 80, {}, dtype=torch.float32)
    leaves = [arg.detach().clone().requires_grad_() for arg in one.args]
    result = joined(OPERATORS[name].fn(*leaves, **one.kwargs))
    return [result.detach(), *torch.autograd.grad(result, leaves, torch.ones_like(result))]


@pytest.mark.parametrize("name", FLAGS)
def test_operators(name: str, request: pytest.FixtureRequest) -> None:
    expected = with_gradients(name)
    request.getfixturevalue("rounding")
    assert_all_close(with_gradients(name), expected, 0)


def test_the_last_thread_to_go_restores_the_setting(rounding: None) -> None:
    like = torch.zeros((), device=DEVICE)
    entered, leave = threading.Event(), threading.Event()

    def stay() -> None:
        with _precision.full_products(DEVICE.type):
            entered.set()
            leave.wait()

    other = threading.Thread(target=stay)
    other.start()
    entered.wait()
    assert SETTING.fp32_precision == "ieee"
    assert _precision.products_are_rounded(like)  # they would be when the other one goes
    with _precision.full_products(DEVICE.type):
        leave.set()
        other.join()
        assert SETTING.fp32_precision == "ieee"
    assert SETTING.fp32_precision == ROUNDED
    assert _precision.products_are_rounded(like)
    assert not _precision.products_are_rounded(like.double())
