"""Kernels as functions of parameters that are put into the module, and taken out again."""

from __future__ import annotations

import threading

import pytest
import torch
from tolerances import assert_close
from torch import Tensor

from lapgrad.fused import KernelFunction
from lapgrad.fused._sgp import kernel_function as _kernel_function
from lapgrad.fused._sgp.kernel_function import wrap_module
from lapgrad.models.kernels import RBF

X = torch.linspace(0.0, 1.0, 8, dtype=torch.float64)[:, None]


def change_parameters(kernel: RBF) -> tuple[Tensor, ...]:
    return tuple(value.detach() + 0.5 for value in kernel.parameters())


def test_two_threads_leave_a_kernel_as_it_is() -> None:
    """One thread evaluates a kernel while another starts and ends an evaluation of the same kernel."""
    entered, second, out = (threading.Event() for _ in range(3))

    class Slow(RBF):
        def evaluate_chunk(self, X: Tensor, Z: Tensor | None, shortcuts: object = None) -> Tensor:
            if not entered.is_set():
                entered.set()
                second.wait(0.3)
            else:
                second.set()
                out.wait(0.3)
            return super().evaluate_chunk(X, Z, shortcuts)

    kernel = Slow().double()
    before, others = list(kernel.parameters()), change_parameters(kernel)
    found: list[Tensor] = []

    def use() -> None:
        found.append(wrap_module(kernel).matrix(X, X.clone(), *others))

    threads = [threading.Thread(target=use) for _ in range(2)]
    threads[0].start()
    assert entered.wait(5.0)
    threads[1].start()
    threads[0].join()
    out.set()
    threads[1].join()
    assert all(one is other for one, other in zip(kernel.parameters(), before, strict=True))
    assert_close(*found, 0)


def test_an_error_leaves_a_kernel_as_it_is() -> None:
    kernel = RBF().double()
    before = list(kernel.parameters())
    function = wrap_module(kernel)
    held = KernelFunction(function.matrix, function.diagonal, change_parameters(kernel))

    def fail() -> None:
        held.matrix(X, X, *held.parameters)
        raise KeyError("of the caller")

    with pytest.raises(KeyError, match="of the caller"):
        _kernel_function.call_with_parameters(held, X, fail)
    assert all(one is other for one, other in zip(kernel.parameters(), before, strict=True))
    assert_close(function.matrix(X, X, *before), kernel(X), 0)
