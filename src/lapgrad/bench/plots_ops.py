"""Times of operators over n, divided by n³, as in Figure 1 of the paper.

One figure per device, dtype and number of threads; one panel per operator; one colour per library, forward
as a full line and backward as a dashed one, with a band from quartile to quartile.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lapgrad import _errors
from lapgrad.bench.results import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = {
    "lapgrad": "#c1272d",
    "torch": "#0b5394",
    "jax": "#2d7d46",
    "tensorflow": "#e08a00",
    "mxnet": "#6a3d9a",
}
"""The same in every plot of a library."""

_LINES = {"forward": "-", "backward": "--", "step": ":"}
_MARKERS = {"forward": "o", "backward": "s", "step": "^"}
_SUPERSCRIPTS = {1: "", 2: "²", 3: "³"}
_LINEAR = {"fused.kalman_nll"}
"""Operators whose n counts steps."""


def figures(rows: Sequence[Row]) -> dict[str, Figure]:
    """One figure per device, dtype and number of threads that has something to show, by name.

    Args:
        rows: of results of kind "ops". Batches and rectangles are left out, operators at a single n, and rows
            of libraries that failed.

    Raises:
        MissingDependencyError: matplotlib is not installed.

    Example:
        >>> import importlib.util, pytest
        >>> _ = importlib.util.find_spec("matplotlib") or pytest.skip("needs matplotlib")
        >>> row = {"operator": "potrf", "dtype": "float64", "device": "cpu", "threads": 2, "phase": "forward",
        ...        "library": "lapgrad", "low_s": 1e-5, "high_s": 2e-5, "flops": 1.0}
        >>> found = figures([{**row, "shape": [n, n], "median_s": 1e-5 * n} for n in (64, 128)])
        >>> list(found)
        ['ops-cpu-float64-2-threads']
    """
    wanted: dict[tuple[str, str, int], list[Row]] = {}
    for row in rows:
        if len(row["shape"]) == 2 and row["shape"][0] == row["shape"][1] and "error" not in row:
            wanted.setdefault((row["device"], row["dtype"], row["threads"]), []).append(row)
    found = {}
    for (device, dtype, threads), chosen in wanted.items():
        panels = _panels(chosen)
        if panels:
            threads_text = "" if device == "cuda" else f", {threads} thread{'s' if threads > 1 else ''}"
            name = f"ops-{device}-{dtype}" + (f"-{threads}-threads" if device != "cuda" else "")
            found[name] = _figure(panels, f"{device.upper()}, {dtype}{threads_text}")
    return found


def write(rows: Sequence[Row], folder: Path) -> list[Path]:
    """All figures as PNG and SVG; returns what was written."""
    written = []
    for name, figure in figures(rows).items():
        folder.mkdir(parents=True, exist_ok=True)
        for suffix in ("png", "svg"):
            path = folder / f"{name}.{suffix}"
            figure.savefig(path, dpi=150)
            written.append(path)
    return written


def _panels(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows of each operator that was timed at two sizes or more."""
    by_operator: dict[str, list[Row]] = {}
    for row in rows:
        by_operator.setdefault(row["operator"], []).append(row)
    return {
        name: found for name, found in by_operator.items() if len({row["shape"][-1] for row in found}) > 1
    }


def _figure(panels: dict[str, list[Row]], title: str) -> Figure:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise _errors.MissingDependencyError("plots need matplotlib: pip install 'lapgrad[bench]'") from error
    columns = min(3, len(panels))
    lines = -(-len(panels) // columns)
    figure = Figure(figsize=(4.2 * columns + 0.4, 3.3 * lines + 1.1), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontweight="bold")
    grid = figure.subplots(lines, columns, squeeze=False)
    for panel, (name, rows) in zip(grid.flat, panels.items(), strict=False):
        _draw(panel, name, rows)
    for panel in list(grid.flat)[len(panels) :]:
        panel.set_axis_off()
    _legend(figure, [row for rows in panels.values() for row in rows], 3 * columns)
    return figure


def _draw(panel: Axes, name: str, rows: Sequence[Row]) -> None:
    power = _power(name, rows)
    for library in _libraries(rows):
        for phase, style in _LINES.items():
            points = sorted(
                (row for row in rows if row["library"] == library and row["phase"] == phase),
                key=lambda row: row["shape"][-1],
            )
            if not points:
                continue
            n = [row["shape"][-1] for row in points]
            # In units of 1e-12 s: a flop takes some tens of them on a core.
            median, low, high = (
                [1e12 * row[key] / row["shape"][-1] ** power for row in points]
                for key in ("median_s", "low_s", "high_s")
            )
            color, width = _color(library), 2.0 if library == "lapgrad" else 1.4
            panel.plot(n, median, style, color=color, lw=width, marker=_MARKERS[phase], ms=3.5)
            panel.fill_between(n, low, high, color=color, alpha=0.15, lw=0)
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    sizes = sorted({row["shape"][-1] for row in rows})
    panel.set_xticks(sizes, [str(size) for size in sizes])
    panel.minorticks_off()
    panel.set_title(name, fontsize=11)
    panel.set_xlabel("n")
    panel.set_ylabel(f"time / n{_SUPERSCRIPTS[power]}  (ps)")
    panel.grid(visible=True, which="major", color="0.88", lw=0.6)
    panel.set_axisbelow(True)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)


def _legend(figure: Figure, rows: Sequence[Row], in_a_line: int) -> None:
    from matplotlib.lines import Line2D

    keys: list[Any] = [Line2D([], [], color=_color(name), lw=2.0, label=name) for name in _libraries(rows)]
    phases = [phase for phase in _LINES if any(row["phase"] == phase for row in rows)]
    keys += [
        Line2D([], [], color="0.3", ls=_LINES[phase], marker=_MARKERS[phase], ms=3.5, lw=1.4, label=phase)
        for phase in phases
    ]
    figure.legend(handles=keys, loc="outside lower center", ncols=min(len(keys), in_a_line), frameon=False)


def _power(name: str, rows: Sequence[Row]) -> int:
    """How the work grows with n: n² where elements are only moved."""
    if name in _LINEAR:
        return 1
    return 2 if rows[0].get("flops") is None else 3


def _libraries(rows: Sequence[Row]) -> list[str]:
    names = {row["library"] for row in rows}
    return [name for name in COLORS if name in names] + sorted(names - COLORS.keys())


def _color(library: str) -> str:
    return COLORS.get(library, "0.4")
