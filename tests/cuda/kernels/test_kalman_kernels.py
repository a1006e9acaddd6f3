"""kalman_nll: the CUDA kernels against the CPU's, which are tested against the joint density."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from kernel_packages import in_torch as _fallback
from machines import MACHINES, Machine
from tolerances import HIGHER_ORDER, SUMS_OVER_STEPS, assert_close
from torch import Tensor

from lapgrad._kernels.cuda.runtime import items as _items
from lapgrad._kernels.cuda.runtime import stream as _stream
from lapgrad._kernels.cuda.small import kalman as kernels
from lapgrad._kernels.table import lookup

machines = pytest.mark.parametrize("machine", MACHINES)
NAMES = ("y", "A", "B", "Q", "R", "m", "P", "c")


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes of a model, and which operands the series share (``shared``) or vary with time (``varying``)."""

    n: int
    p: int
    series: int = 3
    times: int = 7
    dtype: torch.dtype = torch.float64
    shared: str = ""
    varying: str = ""

    def __str__(self) -> str:
        single = "-float32" if self.dtype is torch.float32 else ""
        return f"{self.n}-{self.p}{single}-shared_{self.shared}-varying_{self.varying}"


#: One case per variant of the kernel: one warp or one block per series, factors in registers or in lanes;
#: sizes that are no powers of two.
CASES = [
    Sizes(3, 2),
    Sizes(4, 2, shared="ABQRmPc"),
    Sizes(3, 2, shared="AQc", varying="ABQRc"),
    Sizes(5, 6, varying="BR", shared="Rm"),
    Sizes(9, 2, series=2, times=5, varying="AQc", shared="ABP"),
    Sizes(4, 2, dtype=torch.float32, shared="ABQRP"),
]
cases = pytest.mark.parametrize("sizes", CASES, ids=str)


def make_operands(sizes: Sizes, gaps: bool = True) -> list[Tensor]:
    """Return the operands on the CPU. Series differ in length; observations and whole steps are missing."""
    generator = torch.Generator().manual_seed(sizes.n)
    series, times, n, p = sizes.series, sizes.times, sizes.n, sizes.p

    def random(name: str, *shape: int) -> Tensor:
        count = 1 if name in sizes.shared else series
        leading = (count,) if name in "mP" else (count, times if name in "y" + sizes.varying else 1)
        return torch.randn(*leading, *shape, generator=generator, dtype=torch.float64)

    def spd(name: str, order: int) -> Tensor:
        X = random(name, order, order)
        return X @ X.mT / order + 0.3 * torch.eye(order, dtype=torch.float64)

    y = random("y", p)
    if gaps:
        for i in range(series):
            y[i, times - i % 3 :] = torch.nan
            y[i, (i + 1) % times, i % p] = torch.nan
            y[i, 2 % times] = torch.nan
    A = 0.6 / n**0.5 * random("A", n, n)
    operands = [
        y,
        A,
        random("B", p, n),
        spd("Q", n),
        spd("R", p),
        random("m", n),
        spd("P", n),
        random("c", n),
    ]
    return [operand.to(sizes.dtype) for operand in operands]


def run_kalman_nll(machine: Machine, operands: list[Tensor]) -> tuple[Tensor, tuple[int, int, int] | None]:
    there = kernels.make_dense([operand.to(machine.device) for operand in operands])
    s = torch.full_like(there[0][:, 0, 0], 7.0)
    cell = _items.create_status_cell(s)
    machine.launch(kernels.plan_filter(s, there, cell))
    return s.cpu(), kernels.read_first_failure(cell)


def run_kalman_vjp(
    machine: Machine,
    operands: list[Tensor],
    gs: Tensor,
    wanted: str = "yABQRmPc",
    workspace: int = 1 << 20,
    layout: Callable[[Tensor], Tensor] = torch.clone,
) -> list[Tensor | None]:
    there = [operand.to(machine.device) for operand in operands]
    results = [
        layout(torch.full(operand.shape, 7.0, dtype=operand.dtype, device=operand.device))
        if name in wanted
        else None
        for operand, name in zip(there, NAMES, strict=True)
    ]

    def launch(*plan: Any) -> None:
        machine.launch(plan)

    kernels.compute_vjp(launch, gs.to(machine.device), results, kernels.make_dense(there), workspace)
    return [None if result is None else result.cpu() for result in results]


def compute_expected(
    operands: list[Tensor], gs: Tensor, layout: Callable[[Tensor], Tensor] = torch.clone
) -> tuple[Tensor, list[Tensor]]:
    s = torch.empty_like(gs)
    results = [layout(torch.full(operand.shape, 7.0).to(operand)) for operand in operands]
    assert lookup("kalman_nll", s)(s, *operands) is None
    lookup("kalman_nll_vjp", s)(gs, results, *operands)
    return s, results


@machines
@cases
def test_value_and_gradient(machine: Machine, sizes: Sizes) -> None:
    operands, gs = make_operands(sizes), torch.linspace(0.5, -2.0, sizes.series, dtype=sizes.dtype)
    s, found = compute_expected(operands, gs)
    values, failure = run_kalman_nll(machine, operands)
    assert failure is None
    assert_close(values, s)
    for actual, wanted in zip(run_kalman_vjp(machine, operands, gs), found, strict=True):
        assert actual is not None
        assert_close(actual, wanted)


@machines
def test_gradients_are_the_same_to_the_last_bit(machine: Machine) -> None:
    """The order of threads, and which gradients are asked for, do not change a bit."""
    operands, gs = make_operands(CASES[1]), torch.ones(CASES[1].series, dtype=torch.float64)
    reference = run_kalman_vjp(dataclasses.replace(machine, reverse_order=False), operands, gs)
    for wanted in ("yABQRmPc", "A", "B", "QR", "m", "yc"):
        for name, actual, same in zip(
            NAMES, run_kalman_vjp(machine, operands, gs, wanted), reference, strict=True
        ):
            assert (actual is None) == (name not in wanted)
            assert actual is None or (same is not None and torch.equal(actual, same))
    for actual in (run_kalman_vjp(machine, operands, gs)[i] for i in (3, 4, 6)):
        assert actual is not None
        assert torch.equal(actual, actual.mT)


@machines
@pytest.mark.parametrize("varying", ["", "ABQRc"])
def test_segments_and_chunks(machine: Machine, varying: str) -> None:
    """With a tiny workspace the kernel keeps the moments of 4 steps at a time, of one series at a time."""
    sizes = Sizes(3, 2, series=4, times=11, shared="ABQRmPc", varying=varying)
    operands, gs = make_operands(sizes), torch.ones(1, dtype=torch.float64).expand(4)
    assert kernels._divide_work([None] * 8, operands, 1000) == (4, 1)
    assert kernels._divide_work([None] * 8, operands, 1 << 20) == (11, 4)
    _, found = compute_expected(operands, gs)
    for actual, wanted in zip(run_kalman_vjp(machine, operands, gs, workspace=1000), found, strict=True):
        assert actual is not None
        assert_close(actual, wanted)


@machines
def test_any_strides(machine: Machine) -> None:
    operands = make_operands(CASES[0])
    s, _ = compute_expected(operands, torch.ones(3, dtype=torch.float64))
    turned = [operand.transpose(-1, 1).contiguous().transpose(-1, 1) for operand in operands]
    apart = [torch.stack((operand, operand), -1)[..., 0] for operand in operands]
    spread = [torch.cat((operand, operand), 1)[:, : operand.shape[1]] for operand in operands[:5]] + operands[
        5:
    ]
    for strange in (turned, apart, spread):
        values, failure = run_kalman_nll(machine, strange)
        assert failure is None
        assert_close(values, s)
    assert kernels.make_dense(spread)[0].data_ptr() == spread[0].data_ptr()
    times = operands[0].shape[1]
    expanded = [operands[0][:1].expand(3, -1, -1)]
    expanded += [X.expand(3, times, *X.shape[2:]) for X in operands[1:5]] + operands[5:]
    values, found = compute_expected(expanded, s)
    assert_close(run_kalman_nll(machine, expanded)[0], values)
    for actual, wanted in zip(run_kalman_vjp(machine, expanded, s), found, strict=True):
        assert actual is not None
        assert_close(actual, wanted)


def store_by_columns(X: Tensor) -> Tensor:
    """Return the same matrices in column-major memory, as linear algebra libraries return them."""
    return X.mT.contiguous().mT


@machines
@pytest.mark.parametrize("sizes", CASES[:3], ids=str)
def test_results_of_any_strides(machine: Machine, sizes: Sizes) -> None:
    """Results in column-major memory are not transposed, on the CPU and on a device."""
    operands, gs = make_operands(sizes), torch.linspace(0.5, -2.0, sizes.series, dtype=sizes.dtype)
    _, found = compute_expected(operands, gs)
    _, turned = compute_expected(operands, gs, store_by_columns)
    there = run_kalman_vjp(machine, operands, gs, layout=store_by_columns)
    for actual, on_cpu, wanted in zip(there, turned, found, strict=True):
        assert actual is not None
        assert_close(actual, wanted)
        assert_close(on_cpu, wanted, 0)


@machines
def test_one_step_and_nothing_observed(machine: Machine) -> None:
    operands = make_operands(Sizes(3, 2, times=1), gaps=False)
    operands[0][1] = torch.nan
    operands[1][:] = torch.nan  # no step follows: not used
    s, found = compute_expected(operands, torch.ones(3, dtype=torch.float64))
    values, failure = run_kalman_nll(machine, operands)
    assert failure is None
    assert values[1] == 0.0
    assert_close(values, s)
    for actual, wanted in zip(run_kalman_vjp(machine, operands, torch.ones_like(s)), found, strict=True):
        assert actual is not None
        assert_close(actual, wanted)


@machines
def test_first_failure_is_reported(machine: Machine) -> None:
    """The first series that fails, its step and the CPU's error code are reported; other series are right."""
    sizes = Sizes(3, 2, series=5, times=5, varying="R")
    operands = make_operands(sizes, gaps=False)
    s, _ = compute_expected(operands, torch.ones(5, dtype=torch.float64))
    y, R = operands[0], operands[4]
    y[4, 0, 0] = torch.inf
    R[3, 2, 1, 1] = -50.0
    R[3, 3, 0, 0] = -50.0
    R[2, 1, 1, 0] = torch.nan
    R[1, 4, 0, 0] = -50.0
    for series, code in ((1, (1, 4, 1)), (2, (2, 1, -2)), (3, (3, 2, 2)), (4, (4, 0, -3))):
        values, failure = run_kalman_nll(machine, operands)
        assert failure == lookup("kalman_nll", y)(torch.empty(5, dtype=torch.float64), *operands) == code
        assert values[series:].isnan().all()
        assert_close(values[:series], s[:series])
        operands[4][series] = R[0]
        y[series] = y[0] if series == 4 else y[series]
        s[series] = run_kalman_nll(machine, operands)[0][series]
    assert run_kalman_nll(machine, operands)[1] is None


@machines
def test_failure_by_lanes(machine: Machine) -> None:
    operands = make_operands(Sizes(5, 6, times=2), gaps=False)
    operands[4][1, 0, 4, 4] = -90.0
    assert run_kalman_nll(machine, operands)[1] == (1, 0, 5)
    operands[4][1, 0, 4, 4] = torch.inf
    assert run_kalman_nll(machine, operands)[1] == (1, 0, -5)


@machines
def test_pivots_of_any_size(machine: Machine) -> None:
    """The product of the pivots overflows or underflows, but its logarithm is right."""
    one = torch.ones(2, 1, 1, 1, dtype=torch.float64)
    scale = torch.tensor([1e-60, 1e60], dtype=torch.float64)[:, None, None, None]
    y = torch.zeros(2, 20, 1, dtype=torch.float64)
    operands = [y, 0 * one, one, scale, scale, one[:, 0, 0], scale[:, 0], 0 * one[:, :, 0]]
    values, failure = run_kalman_nll(machine, operands)
    assert failure is None
    assert_close(values, compute_expected(operands, values)[0])


@machines
def test_unstable_series_that_ended_long_ago(machine: Machine) -> None:
    y = torch.full((2, 1200, 1), torch.nan, dtype=torch.float64)
    y[:, :3] = 1.0
    one = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    operands = [y, 3.0 * one, one, one, one, one[0, 0], one[0], one[:, :, 0]]
    s, found = compute_expected(operands, torch.ones(2, dtype=torch.float64))
    assert_close(run_kalman_nll(machine, operands)[0], s)
    for actual, wanted in zip(run_kalman_vjp(machine, operands, torch.ones_like(s)), found, strict=True):
        assert actual is not None
        assert_close(actual, wanted)


def test_what_is_not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_stream, "get_block_memory", lambda device: 227 * 1024)

    def served(n: int, p: int, series: int = 2, times: int = 3, dtype: torch.dtype = torch.float64) -> bool:
        return kernels.serves(
            torch.empty(series, times, p, dtype=dtype), torch.empty(1, 1, n, n, dtype=dtype)
        )

    assert served(1, 1)
    assert served(32, 16)
    assert served(32, 16, dtype=torch.float32)
    assert not served(33, 1)
    assert not served(1, 17)
    assert not served(0, 1)
    assert not served(1, 0)
    assert not served(2, 1, times=0)
    assert not served(2, 1, series=0)
    monkeypatch.setattr(_stream, "get_block_memory", lambda device: 48 * 1024)
    assert served(16, 2)
    assert not served(32, 2)


DEVICE_ONLY = pytest.mark.parametrize("machine", MACHINES[-1:])


@DEVICE_ONLY
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("p", [1, 2, 3, 8, 9, 16])
@pytest.mark.parametrize("n", [1, 2, 4, 5, 8, 9, 16, 17, 32])
def test_all_sizes_on_a_device(machine: Machine, n: int, p: int, dtype: torch.dtype) -> None:
    """Results of the CPU and of a device agree, both called through the kernel table."""
    sizes = Sizes(n, p, series=300, times=20, dtype=dtype, shared="ABQRmP", varying="BR")
    operands, gs = make_operands(sizes), torch.linspace(-1.0, 1.0, 300, dtype=dtype)
    s, found = compute_expected(operands, gs)
    there = [operand.to(machine.device) for operand in operands]
    values, results = torch.empty_like(there[0][:, 0, 0]), [torch.empty_like(operand) for operand in there]
    assert kernels.serves(there[0], there[1])
    assert lookup("kalman_nll", values)(values, *there) is None
    lookup("kalman_nll_vjp", values)(gs.to(machine.device), results, *there)
    assert_close(values.cpu(), s, SUMS_OVER_STEPS)
    for actual, wanted in zip(results, found, strict=True):
        assert_close(actual.cpu(), wanted, HIGHER_ORDER)


@DEVICE_ONLY
def test_beyond_the_limits_plain_pytorch_serves_a_device(machine: Machine) -> None:
    operands = make_operands(Sizes(33, 2, times=3))
    there = [operand.to(machine.device) for operand in operands]
    s, expected_s = torch.empty_like(there[0][:, 0, 0]), torch.empty(3, dtype=torch.float64)
    assert lookup("kalman_nll", s)(s, *there) is None
    _fallback.kalman_nll(expected_s, *operands)
    assert_close(s.cpu(), expected_s)
