"""Maps of the speed-up over order and batch: the colour is the median, a cross marks a slower timing."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lapgrad_bench.bench.sweep.summary import Comparison
from lapgrad_bench.common.plotting import make_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import QuadMesh

ORDERS = tuple(2**k for k in range(13))
"""The least order of each column of a map."""

_BATCH_LABELS = ("1", "2–9", "10–99", "100–999", "10³–", "10⁴–")
"""One row of a map each; the last has all larger batches."""

_MOST_DOUBLINGS = 2.0
"""Where colours end: four times faster or slower."""

Grid = list[list[list[float]]]
"""Speed-ups by row (batch) and column (order)."""


def group_by_size(compared: Iterable[Comparison]) -> Grid:
    """Return the speed-ups of each field of a map."""
    grid: Grid = [[[] for _ in ORDERS] for _ in _BATCH_LABELS]
    for one in compared:
        row, column = find_field(one.order, one.items)
        grid[row][column].append(one.ratio)
    return grid


def find_field(order: int, items: int) -> tuple[int, int]:
    """Return the row and the column of a case.

    Example:
        >>> find_field(order=5, items=1), find_field(order=4096, items=10**5)
        ((0, 2), (5, 12))
    """
    row = 0 if items < 2 else len(str(items))
    return min(len(_BATCH_LABELS) - 1, row), min(len(ORDERS), order.bit_length()) - 1


def draw_map(axes: Axes, title: str, compared: Sequence[Comparison]) -> QuadMesh:
    """Draw the map of one operator; return the mesh, for a colour bar."""
    grid = group_by_size(compared)
    colours = [
        [math.log2(statistics.median(ratios)) if ratios else math.nan for ratios in row] for row in grid
    ]
    mesh = axes.pcolormesh(
        colours,
        cmap="RdBu",
        vmin=-_MOST_DOUBLINGS,
        vmax=_MOST_DOUBLINGS,
        edgecolors="#80808040",
        linewidth=0.3,
    )
    for row, column in {find_field(one.order, one.items) for one in compared if one.is_slower}:
        axes.plot(column + 0.5, row + 0.5, "x", color="#000000", ms=4, mew=1.2)
    axes.set_xticks([k + 0.5 for k in range(0, len(ORDERS), 2)], [str(n) for n in ORDERS[::2]])
    axes.set_yticks([k + 0.5 for k in range(len(_BATCH_LABELS))], _BATCH_LABELS)
    axes.set_xlabel("order, from")
    axes.set_ylabel("batch")
    axes.set_title(title)
    axes.grid(visible=False)
    return mesh


def group_by_operator(compared: Iterable[Comparison]) -> Mapping[str, list[Comparison]]:
    """Return the comparisons by operator, in the order of their names."""
    by_name: dict[str, list[Comparison]] = {}
    for one in compared:
        by_name.setdefault(one.operator, []).append(one)
    return dict(sorted(by_name.items()))


def write_maps(compared: Sequence[Comparison], folder: Path) -> list[Path]:
    """Write one PNG per operator, forward and backward side by side; return the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, own in group_by_operator(compared).items():
        phases = list(dict.fromkeys(one.phase for one in own))
        figure = make_figure(4.6 * len(phases) + 0.8, 3.1)
        panels = figure.subplots(1, len(phases), squeeze=False)[0]
        for axes, phase in zip(panels, phases, strict=True):
            mesh = draw_map(axes, f"{name} {phase}", [one for one in own if one.phase == phase])
        bar = figure.colorbar(mesh, ax=list(panels))
        bar.set_ticks([-2, -1, 0, 1, 2], labels=["¼×", "½×", "1×", "2×", "4×"])
        path = folder / f"sweep-{name}.png"
        figure.savefig(path, dpi=110)
        written.append(path)
    return written
