"""The fuzz: a short fixed run over every operator, and checks that it notices faults."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from device import KERNELS
from fresh_process import make_environment
from fuzz.attack import Attack
from fuzz.memory import ALIASES
from samples import OPERATORS
from torch import Tensor

from lapgrad._torch import layout as _layout

#: What the run in `make test` has: on one core about 15 seconds for all operators.
SEED, CASES, LARGEST = 0, 16, 70

Kernel = Callable[..., Any]


@pytest.mark.parametrize("name", OPERATORS)
def test_fixed_run(name: str) -> None:
    reports = {number: Attack(name, SEED, number, LARGEST).run() for number in range(CASES)}
    failed = {number: report for number, report in reports.items() if report.failures}
    assert not failed
    assert sum(report.undecided for report in reports.values()) <= CASES // 4


def test_a_case_repeats() -> None:
    for name in ("gemm", "gesvd"):
        for number in range(5):
            one, other = (Attack(name, 3, number, 20) for _ in range(2))
            assert one.description == other.description
            for block, again in zip(one.arrangement.blocks, other.arrangement.blocks, strict=True):
                assert torch.equal(block.nan_to_num(), again.nan_to_num())
            assert one.run() == other.run()


def test_what_is_drawn() -> None:
    """The short run draws every way to share memory, with and without overwriting, and every other option."""
    drawn = [Attack("gemm", SEED, number, 6) for number in range(250)]
    words = [attack.description for attack in drawn]
    for alias in ALIASES:
        for overwrites in (False, True):
            assert any(alias in text and ("overwrite" in text) == overwrites for text in words), alias
    for word in (
        "float32",
        "float64",
        "graded",
        "times 2^",
        "items of A shared",
        "transpose_b=True",
        "threads 4",
    ):
        assert any(word in text for text in words), word
    assert {attack.threads for attack in drawn} == {1, 2, 3, 4}
    exponents = [exponent for attack in drawn for exponent in attack.exponents]
    assert min(exponents) < -600
    assert max(exponents) > 600
    empty = [attack for attack in drawn if any(0 in place.shape for place in attack.arrangement.places)]
    assert 3 < len(empty) < 100


def drop_factor(kernel: Kernel, position: int) -> Kernel:
    """Return ``kernel`` with the argument at ``position`` replaced by 1."""
    return lambda *arguments: kernel(*arguments[:position], 1.0, *arguments[position + 1 :])


def flip_flag(kernel: Kernel, position: int) -> Kernel:
    return lambda *arguments: kernel(
        *arguments[:position], not arguments[position], *arguments[position + 1 :]
    )


def change_result(kernel: Kernel, change: Callable[[Tensor], Any]) -> Kernel:
    """Return ``kernel``, followed by a change of its first argument, the result."""

    def run(result: Tensor, *arguments: Any) -> Any:
        returned = kernel(result, *arguments)
        if result.numel():
            change(result)
        return returned

    return run


def change_operand(kernel: Kernel, position: int, change: Callable[[Tensor], Tensor]) -> Kernel:
    """Return ``kernel``, called with ``change(argument)`` in place of the argument at ``position``."""
    return lambda *arguments: kernel(
        *arguments[:position], change(arguments[position]), *arguments[position + 1 :]
    )


def ignore_strides(A: Tensor) -> Tensor:
    """Return the tensor that code which ignores the strides of ``A`` would read."""
    flat = torch.empty(0, dtype=A.dtype).set_(A.untyped_storage())
    start = A.storage_offset()
    length = min(A.numel(), flat.numel() - start)
    dense = torch.zeros(A.numel(), dtype=A.dtype)
    dense[:length] = flat[start : start + length]
    return dense.view(A.shape)


def skip_last_row(kernel: Kernel) -> Kernel:
    def run(result: Tensor, *arguments: Any) -> Any:
        last = result[..., -1:, :].clone()
        returned = kernel(result, *arguments)
        result[..., -1:, :] = last
        return returned

    return run


def skip_last_item(kernel: Kernel) -> Kernel:
    def run(result: Tensor, *arguments: Any) -> Any:
        last = result[-1:].clone()
        returned = kernel(result, *arguments)
        if result.dim() > 2:
            result[-1:] = last
        return returned

    return run


def lose_range_of_squares(A: Tensor) -> Tensor:
    """Return ``A`` with NaN where squares overflow and 0 where they underflow."""
    return A.square().sqrt().copysign(A)


FAULTS: dict[str, tuple[str, str, Callable[[Kernel], Kernel]]] = {
    "factor transposed": ("potrf", "potrf", lambda k: change_result(k, lambda L: L.copy_(L.mT.clone()))),
    "other triangle read": (
        "potrf",
        "potrf",
        lambda k: change_operand(k, 0, lambda A: A.copy_((A + A.mT) / 2)),
    ),
    "other triangle not cleared": (
        "potrf",
        "potrf",
        lambda k: change_result(k, lambda L: L[..., 0, -1].add_(1)),
    ),
    "last pivot": ("potrf", "potrf", lambda k: change_result(k, lambda L: L[..., -1, -1].mul_(1 + 1e-4))),
    "last row not written": ("trsm", "trsm", skip_last_row),
    "last item not written": ("trsm", "trsm", skip_last_item),
    "wrong triangle": ("trsm", "trsm", lambda k: flip_flag(k, 3)),
    "not transposed": ("trmm", "trmm", lambda k: flip_flag(k, 4)),
    "wrong side": ("trmm", "trmm", lambda k: flip_flag(k, 5)),
    "alpha of gemm": ("gemm", "gemm", lambda k: drop_factor(k, 5)),
    "beta of gemm": ("gemm", "gemm", lambda k: drop_factor(k, 6)),
    "alpha of gemmt": ("gemmt", "gemmt", lambda k: drop_factor(k, 6)),
    "strides of an operand": ("gemm", "gemm", lambda k: change_operand(k, 1, ignore_strides)),
    "strides of a cotangent": ("potrf", "potrf_vjp", lambda k: change_operand(k, 2, ignore_strides)),
    "operand modified": (
        "gemm2",
        "gemm",
        lambda k: lambda C, A, *rest: (k(C, A, *rest), A.mul_(1 + 1e-3))[0],
    ),
    "gradient modified": (
        "inverse",
        "inverse_vjp",
        lambda k: change_result(k, lambda g: g[..., 0, :].mul_(1.001)),
    ),
    "gradient transposed": (
        "inverse",
        "inverse_vjp",
        lambda k: change_result(k, lambda g: g.copy_(g.mT.clone())),
    ),
    "overflow on the way": ("gelqf", "gelqf", lambda k: change_operand(k, 2, lose_range_of_squares)),
    "single precision": (
        "syrk",
        "syrk",
        lambda k: change_result(k, lambda B: B.copy_(B.clamp(-3e38, 3e38).float().double())),
    ),
    "400 units of rounding": (
        "gemm2",
        "gemm",
        lambda k: change_result(k, lambda C: C.mul_(1 + 400 * torch.finfo(C.dtype).eps)),
    ),
}


@pytest.mark.cpu
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_noticed(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault in a kernel is found within the cases that `make fuzz` runs of one operator in a minute."""
    name, routine, put_in = FAULTS[fault]
    OPERATORS[name].fn(*OPERATORS[name].small().args, **OPERATORS[name].small().kwargs)  # fills the table
    monkeypatch.setitem(KERNELS, routine, put_in(KERNELS[routine]))
    for number in range(60):
        failures = Attack(name, 1, number, 12).run().failures
        if failures:
            assert not re.match("(Name|Type|Attribute|Runtime)Error", failures[0])
            return
    pytest.fail("nothing was noticed in 60 cases")


@pytest.mark.cpu
@pytest.mark.parametrize("name", ["trsm", "gemm"])
def test_shared_memory_that_is_overwritten_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_layout, "may_overlap", lambda *tensors: False)
    assert any(Attack(name, 1, number, 12).run().failures for number in range(60))


def run_fuzz(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fuzz", "--seed=0", "--seconds=600", "--largest=8", *options]
    return subprocess.run(command, env=make_environment(), capture_output=True, text=True, timeout=220)


@pytest.mark.cpu
def test_command_passes() -> None:
    done = run_fuzz("--ops=copyltu,syrk", "--rounds=3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].split() == ["all", "6", "0"]


#: One case gives a wrong result, one hangs, one crashes, and one makes a library complain.
PRELUDE = """
import os, time
from fuzz.attack import Attack
run = Attack.run
def run_or_fail(self):
    if self.number == 2:
        self.expected.results[0].value += 1
    if self.number == 3:
        time.sleep(60)
    if self.number == 4:
        os.abort()
    if self.number == 5:
        print("Parameter 6 was incorrect")
    return run(self)
Attack.run = run_or_fail
"""


@pytest.mark.cpu
def test_command_reports_what_goes_wrong_and_goes_on() -> None:
    done = run_fuzz("--ops=sumlogdiag", "--first=1", "--rounds=6", "--limit=10", "--prelude", PRELUDE)
    assert done.returncode == 1, done.stderr
    failed = [line.partition(" ")[2] for line in done.stdout.splitlines() if line.startswith("FAILED")]
    assert [line.partition(": ")[0] for line in failed] == [f"sumlogdiag:{i}" for i in (2, 3, 4, 5)]
    assert "entries are wrong" in done.stdout
    assert done.stdout.count("crashed or hung") == 2
    assert done.stderr.count("run_or_fail") == 2  # the stacks of both
    assert "printed: Parameter 6" in done.stdout
    assert "repeat with: PYTHONPATH=tests python -m fuzz --seed 0 --case sumlogdiag:3 " in done.stdout
    assert done.stdout.splitlines()[-1].split() == ["all", "6", "4"]
