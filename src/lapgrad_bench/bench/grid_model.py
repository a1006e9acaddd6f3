"""A model of time and memory of an exact Gaussian process on a grid of p = r × c processes.

One evaluation of value and gradient, n observations, blocks of b rows and columns, per process:

    products    n³ / p flops: n³ / 3p of the factorisation, 2 n³ / 3p of the inverse
    panels      n² b / r flops that the others wait for: a block of columns is solved with before it is sent
    kernel      n² / 2p entries, forward and once more backward
    messages    n² / 2 · (3 / r + 4 / c) numbers: of each block, panels of rows travel along columns of the
    grid and
                panels of columns along rows, once in the factorisation and twice in the inverse, where one
                is a sum (on CPUs also that of the factorisation: 5 / c)
    starts      9 n / b exchanges, each in log₂ of the processes of a row or column stages
    memory      n² / p numbers, panels of n b (1 / r + 1 / c), and what a panel of the kernel takes

Nothing overlaps in the model. Libraries that compute while they send are faster.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from lapgrad.distributed.blockcyclic.scalapack import choose_shape

_BYTES = 8
_EXCHANGES = 9


@dataclass(frozen=True)
class Machine:
    """What one process of a machine can do.

    Attributes:
        name: In words.
        flops: Of products per second, in float64.
        entries: Of a kernel matrix per second, forward and backward together.
        bandwidth: Bytes per second that a process sends and receives.
        latency: Seconds of one stage of an exchange.
        memory: Bytes of a process; 0: not said.
        block: Rows and columns of a block.
        kernel_panel: Bytes that evaluating a panel of the kernel takes.
    """

    name: str
    flops: float
    entries: float
    bandwidth: float
    latency: float
    memory: float
    block: int
    kernel_panel: float


#: Rates of the H200 are measured on a grid of one; bandwidth and latency are those of NCCL between nodes
#: with one 400 Gbit/s adapter per GPU, as vendors state them.
H200 = Machine("H200, 400 Gbit/s per GPU", 36e12, 2.5e10, 40e9, 30e-6, 141e9, 512, 6 * 256 * 2**20)


class Estimate(NamedTuple):
    """Seconds and bytes of one evaluation, per process."""

    products: float
    panels: float
    kernel: float
    messages: float
    starts: float
    memory: float

    @property
    def seconds(self) -> float:
        """All parts together."""
        return self.products + self.panels + self.kernel + self.messages + self.starts

    @property
    def efficiency(self) -> float:
        """The part of the time in which products are computed."""
        return self.products / self.seconds


def estimate(n: int, shape: tuple[int, int], machine: Machine) -> Estimate:
    """Return what one evaluation of n observations on a grid of this shape takes."""
    rows, columns = shape
    processes, block = rows * columns, min(machine.block, n)
    numbers = 0.5 * n**2 * (3.0 * (columns > 1) / rows + 4.0 * (rows > 1) / columns)
    stages = math.log2(rows) + math.log2(columns) if processes > 1 else 0.0
    return Estimate(
        products=n**3 / processes / machine.flops,
        panels=n**2 * block / rows / machine.flops if processes > 1 else 0.0,
        kernel=0.5 * n**2 / processes / machine.entries,
        messages=_BYTES * numbers / machine.bandwidth,
        starts=0.5 * _EXCHANGES * n / block * stages * machine.latency,
        memory=_BYTES * (n**2 / processes + n * block * (1 / rows + 1 / columns)) + machine.kernel_panel,
    )


def format_plan(n: int, processes: list[int], machine: Machine) -> list[str]:
    """Return a table in Markdown: seconds and memory per process for numbers of processes."""
    lines = [
        "| processes | grid | seconds | products | messages | efficiency | GB per process |",
        "|---:|---|---:|---:|---:|---:|---:|",
    ]
    for count in processes:
        shape = choose_shape(count)
        found = estimate(n, shape, machine)
        memory = f"{found.memory / 1e9:.1f}"
        if machine.memory and found.memory > machine.memory:
            memory += ": too much"
        lines.append(
            f"| {count} | {shape[0]} × {shape[1]} | {_round(found.seconds)} | {_round(found.products)} | "
            f"{_round(found.messages)} | {100 * found.efficiency:.0f} % | {memory} |"
        )
    return lines


def _round(seconds: float) -> str:
    """Return seconds with three digits, never as a power of ten: 0.109, 1920."""
    return f"{float(f'{seconds:.3g}'):g}"
