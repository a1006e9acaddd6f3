"""Plots of operators: time divided by n³ over n, as in Figure 1 of the paper.

One figure per device, dtype and number of threads; one panel per operator; one colour per library. Forward is
a full line, backward a dashed one; a band reaches from quartile to quartile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lapgrad_bench.common import plotting
from lapgrad_bench.common.results import Row

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
"""The colour of a library, the same in every plot."""

_LINES = {"forward": "-", "backward": "--", "step": ":"}
_MARKERS = {"forward": "o", "backward": "s", "step": "^"}
_SUPERSCRIPTS = {1: "", 2: "²", 3: "³"}
_LINEAR = {"fused.kalman_nll"}
"""Operators whose n counts steps."""


def draw_figures(rows: Sequence[Row]) -> dict[str, Figure]:
    """Return one figure per device, dtype and number of threads that has something to show, by name.

    Args:
        rows: Of results of kind "ops". Batches and rectangles are left out, operators at a single n, and rows
            of libraries that failed.

    Raises:
        MissingDependencyError: matplotlib is not installed.

    Example:
        >>> import importlib.util, pytest
        >>> _ = importlib.util.find_spec("matplotlib") or pytest.skip("needs matplotlib")
        >>> row = {"operator": "potrf", "dtype": "float64", "device": "cpu", "threads": 2, "phase": "forward",
        ...        "library": "lapgrad", "low_s": 1e-5, "high_s": 2e-5, "flops": 1.0}
        >>> found = draw_figures([{**row, "shape": [n, n], "median_s": 1e-5 * n} for n in (64, 128)])
        >>> list(found)
        ['ops-cpu-float64-2-threads']
    """
    found = {}
    for (device, dtype, threads), panels in group_panels(rows).items():
        threads_text = "" if device == "cuda" else f", {threads} thread{'s' if threads > 1 else ''}"
        name = f"ops-{device}-{dtype}" + (f"-{threads}-threads" if device != "cuda" else "")
        found[name] = _draw_figure(panels, f"{device.upper()}, {dtype}{threads_text}")
    return found


def group_panels(rows: Sequence[Row]) -> dict[tuple[str, str, int], dict[str, list[Row]]]:
    """Return the rows of single square matrices by (device, dtype, threads), and therein by operator.

    Rows of libraries that failed, operators that were timed at a single size, and places without any other
    operator are left out.
    """
    places: dict[tuple[str, str, int], dict[str, list[Row]]] = {}
    for row in rows:
        if len(row["shape"]) == 2 and row["shape"][0] == row["shape"][1] > 0 and "error" not in row:
            place = places.setdefault((row["device"], row["dtype"], row["threads"]), {})
            place.setdefault(row["operator"], []).append(row)
    found = {
        place: {name: own for name, own in panels.items() if len({row["shape"][-1] for row in own}) > 1}
        for place, panels in places.items()
    }
    return {place: panels for place, panels in found.items() if panels}


def _draw_figure(panels: dict[str, list[Row]], title: str) -> Figure:
    columns = min(3, len(panels))
    lines = -(-len(panels) // columns)
    figure = plotting.make_figure(4.2 * columns + 0.4, 3.3 * lines + 1.1)
    figure.suptitle(title, fontweight="bold")
    grid = figure.subplots(lines, columns, squeeze=False)
    for panel, (name, rows) in zip(grid.flat, panels.items(), strict=False):
        draw_operator(panel, name, rows)
    for panel in list(grid.flat)[len(panels) :]:
        panel.set_axis_off()
    keys = make_legend_keys([row for rows in panels.values() for row in rows])
    figure.legend(handles=keys, loc="outside lower center", ncols=min(len(keys), 3 * columns), frameon=False)
    return figure


def draw_operator(panel: Axes, name: str, rows: Sequence[Row]) -> None:
    """Draw time over n of one operator: a line per library and phase, with a band between the quartiles."""
    power = _choose_power(name, rows)
    for library in _list_libraries(rows):
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
            color, width = get_color(library), 2.0 if library == "lapgrad" else 1.4
            panel.plot(
                n,
                median,
                style,
                color=color,
                lw=width,
                marker=_MARKERS[phase],
                ms=3.5,
                label=f"{library} {phase}",
            )
            panel.fill_between(n, low, high, color=color, alpha=0.15, lw=0)
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    plotting.label_sizes(panel.xaxis, {row["shape"][-1] for row in rows})
    plotting.label_round_values(panel.yaxis)
    panel.set_title(name, fontsize=11)
    panel.set_xlabel("n")
    panel.set_ylabel(f"time / n{_SUPERSCRIPTS[power]}  (ps)")
    panel.grid(visible=True, which="major", alpha=0.3)
    panel.set_axisbelow(True)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)


def make_legend_keys(rows: Sequence[Row]) -> list[Any]:
    """Return legend entries: a coloured line for each library, and a grey one for each phase."""
    from matplotlib.lines import Line2D

    keys = [Line2D([], [], color=get_color(name), lw=2.0, label=name) for name in _list_libraries(rows)]
    phases = [phase for phase in _LINES if any(row["phase"] == phase for row in rows)]
    return keys + [
        Line2D([], [], color="0.3", ls=_LINES[phase], marker=_MARKERS[phase], ms=3.5, lw=1.4, label=phase)
        for phase in phases
    ]


def _choose_power(name: str, rows: Sequence[Row]) -> int:
    """Return the power of n that the work grows with: 2 where elements are only moved."""
    if name in _LINEAR:
        return 1
    return 2 if rows[0].get("flops") is None else 3


def _list_libraries(rows: Sequence[Row]) -> list[str]:
    names = {row["library"] for row in rows}
    return [name for name in COLORS if name in names] + sorted(names - COLORS.keys())


def get_color(library: str) -> str:
    """Return the colour of a library; grey for one without a colour of its own."""
    return COLORS.get(library, "0.4")
