"""Plots of models: time and memory of a criterion with its gradient.

The sparse process has a figure like Figure 2 of the paper: seconds over the number of inducing inputs, with
the memory of an evaluation beside it. The other models share one figure: bars, one per library.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from lapgrad_bench.bench.ops import plots as op_plots
from lapgrad_bench.common import plotting
from lapgrad_bench.common.results import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = {
    **op_plots.COLORS,
    "torch-graph": "#7a9cc6",
    "gpytorch": "#2d7d46",
    "gpy": "#8a5a2b",
    "gpflow": "#e08a00",
}
"""The colour of a library, the same in every plot."""

NAMES = {
    "torch": "torch, written out",
    "torch-graph": "torch, one graph",
    "gpytorch": "GPyTorch",
    "gpy": "GPy",
    "gpflow": "GPflow",
}
_MODELS = {
    "exact_gp": "exact GP",
    "kalman": "Kalman filter",
    "mvn_nll": "multivariate normal",
    "deep_gp": "deep Gaussian process",
    "deep_gp_step": "deep GP, training step",
}


def draw_figures(rows: Sequence[Row]) -> dict[str, Figure]:
    """Return figures by name, one or two per device and number of threads.

    Args:
        rows: Of results of kind "models". Those of libraries that failed are left out.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    found = {}
    rows = [row for row in rows if "error" not in row]
    for device, threads in dict.fromkeys((row["device"], row["threads"]) for row in rows):
        chosen = [row for row in rows if (row["device"], row["threads"]) == (device, threads)]
        where = "" if device == "cuda" else f"-{threads}-threads"
        what = device.upper() if device == "cuda" else f"CPU, {threads} thread{'s' if threads > 1 else ''}"
        sparse = [row for row in chosen if row["model"] == "sparse_gp"]
        if len({row["case"]["U"] for row in sparse}) > 1:
            found[f"sparse-gp-{device}{where}"] = _draw_sparse(sparse, what)
        others = [row for row in chosen if row["model"] != "sparse_gp"]
        if others:
            found[f"models-{device}{where}"] = _draw_others(others, what)
    return found


def _list_libraries(rows: Sequence[Row]) -> list[str]:
    present = dict.fromkeys(row["library"] for row in rows)
    known = [name for name in ("lapgrad", *NAMES) if name in present]
    return known + [name for name in present if name not in known]


def _get_color(library: str) -> str:
    return COLORS.get(library.lower(), "0.4")


def _draw_sparse(rows: Sequence[Row], where: str) -> Figure:
    figure = plotting.make_figure(10.0, 4.3)
    data = "power" if rows[0].get("data") == "power" else "made-up data"
    n = rows[0]["case"]["n"]
    figure.suptitle(f"Sparse GP, value and gradient: {data}, n = {n}. {where}", fontweight="bold")
    time, memory = figure.subplots(1, 2)
    draw_over_size(time, rows, "U", "seconds")
    draw_over_size(memory, rows, "U", "megabytes")
    for axes, label in ((time, "seconds"), (memory, "extra memory, MB")):
        axes.set(xlabel="inducing inputs U", ylabel=label)
    handles, labels = time.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    return figure


def draw_over_size(
    axes: Axes, rows: Sequence[Row], size: str, quantity: Literal["seconds", "megabytes"]
) -> None:
    """Draw the time (with a band between its quartiles) or the extra memory over one size of the cases.

    Args:
        axes: Where to draw.
        rows: Of one model; rows without the quantity are left out.
        size: The key of the size in a row's case.
        quantity: What stands on the vertical axis.
    """
    for library in _list_libraries(rows):
        own = sorted(
            (row for row in rows if row["library"] == library and _get_quantity(row, quantity)),
            key=lambda row: row["case"][size],
        )
        if not own:
            continue
        across, color = [row["case"][size] for row in own], _get_color(library)
        axes.plot(
            across,
            [_get_quantity(row, quantity) for row in own],
            "o-",
            color=color,
            linewidth=2.2 if library == "lapgrad" else 1.4,
            markersize=4.5,
            label=NAMES.get(library, library),
        )
        if quantity == "seconds":
            low, high = ([row[key] for row in own] for key in ("low_s", "high_s"))
            axes.fill_between(across, low, high, color=color, alpha=0.15, linewidth=0)
    axes.set(xscale="log", yscale="log", xlabel=size, ylabel=quantity)
    plotting.label_sizes(axes.xaxis, {row["case"][size] for row in rows})
    plotting.label_round_values(axes.yaxis)
    axes.grid(True, which="major", alpha=0.3)


def _get_quantity(row: Row, quantity: Literal["seconds", "megabytes"]) -> Any:
    """Return a number, or None where it was not measured."""
    if quantity == "seconds":
        return row["median_s"]
    return row["extra_bytes"] and row["extra_bytes"] / 1e6


def _draw_others(rows: Sequence[Row], where: str) -> Figure:
    cases = list(dict.fromkeys((row["model"], str(row["case"])) for row in rows))
    figure = plotting.make_figure(2.6 * len(cases) + 1.0, 3.8)
    figure.suptitle(f"Value and gradient. {where}", fontweight="bold")
    panels = figure.subplots(1, len(cases), squeeze=False)[0]
    for axes, case in zip(panels, cases, strict=True):
        _draw_bars(axes, [row for row in rows if (row["model"], str(row["case"])) == case])
    panels[0].set_ylabel("milliseconds")
    return figure


def _draw_bars(axes: Axes, rows: Sequence[Row]) -> None:
    libraries = _list_libraries(rows)
    times = {row["library"]: 1e3 * row["median_s"] for row in rows}
    heights = [times[library] for library in libraries]
    bars = axes.bar(
        [NAMES.get(library, library).replace(", ", ",\n") for library in libraries],
        heights,
        color=[_get_color(library) for library in libraries],
    )
    labels = [f"{height:.3g}\n{height / times['lapgrad']:.3g}×" for height in heights]
    axes.bar_label(bars, labels, fontsize=8)
    axes.margins(y=0.2)
    axes.set_title(_format_title(rows[0]), fontsize=9)
    axes.tick_params(axis="x", labelsize=8)


def _format_title(row: Row) -> str:
    sizes = [f"{name} = {value}" for name, value in row["case"].items()]
    lines = [", ".join(sizes[i : i + 2]) for i in range(0, len(sizes), 2)]
    return "\n".join([_MODELS[row["model"]], *lines])
