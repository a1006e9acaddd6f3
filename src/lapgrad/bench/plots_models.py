"""Time and memory of criteria of models.

One figure for the sparse process, as Figure 2 of the paper: seconds over the number of inducing inputs, with
the memory of an evaluation beside it. One for the other models: bars, one per library.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lapgrad import _errors
from lapgrad.bench import plots_ops
from lapgrad.bench.results import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = {
    **plots_ops.COLORS,
    "torch-graph": "#7a9cc6",
    "gpytorch": "#2d7d46",
    "gpy": "#8a5a2b",
    "gpflow": "#e08a00",
}
"""The same in every plot of a library."""

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


def figures(rows: Sequence[Row]) -> dict[str, Figure]:
    """Figures by name, one or two per device and number of threads.

    Args:
        rows: of results of kind "models". Those of libraries that failed are left out.

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
            found[f"sparse-gp-{device}{where}"] = _sparse(sparse, what)
        others = [row for row in chosen if row["model"] != "sparse_gp"]
        if others:
            found[f"models-{device}{where}"] = _others(others, what)
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


def _new(width: float, height: float) -> Figure:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise _errors.MissingDependencyError("plots need matplotlib: pip install 'lapgrad[bench]'") from error
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _libraries(rows: Sequence[Row]) -> list[str]:
    present = {row["library"] for row in rows}
    return [name for name in ("lapgrad", *NAMES) if name in present]


def _sparse(rows: Sequence[Row], where: str) -> Figure:
    figure = _new(10.0, 4.3)
    data = "power" if rows[0].get("data") == "power" else "made-up data"
    n = rows[0]["case"]["n"]
    figure.suptitle(f"Sparse GP, value and gradient: {data}, n = {n}. {where}", fontweight="bold")
    time, memory = figure.subplots(1, 2)
    _over_inducing(
        time, rows, "seconds", lambda row: row["median_s"], lambda row: (row["low_s"], row["high_s"])
    )
    _over_inducing(
        memory, rows, "extra memory, MB", lambda row: row["extra_bytes"] and row["extra_bytes"] / 1e6, None
    )
    handles, labels = time.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    return figure


def _over_inducing(
    axes: Axes,
    rows: Sequence[Row],
    label: str,
    figure: Callable[[Row], Any],
    band: Callable[[Row], tuple[float, float]] | None,
) -> None:
    for library in _libraries(rows):
        own = sorted(
            (row for row in rows if row["library"] == library and figure(row)),
            key=lambda row: row["case"]["U"],
        )
        inducing = [row["case"]["U"] for row in own]
        width = 2.2 if library == "lapgrad" else 1.4
        axes.plot(
            inducing,
            [figure(row) for row in own],
            "o-",
            color=COLORS[library],
            linewidth=width,
            markersize=4.5,
            label=NAMES.get(library, library),
        )
        if band is not None and own:
            low, high = zip(*map(band, own), strict=True)
            axes.fill_between(inducing, low, high, color=COLORS[library], alpha=0.15, linewidth=0)
    ticks = sorted({row["case"]["U"] for row in rows})
    axes.set(xscale="log", yscale="log", xlabel="inducing inputs U", ylabel=label)
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.grid(True, which="major", alpha=0.3)


def _others(rows: Sequence[Row], where: str) -> Figure:
    cases = list(dict.fromkeys((row["model"], str(row["case"])) for row in rows))
    figure = _new(2.6 * len(cases) + 1.0, 3.8)
    figure.suptitle(f"Value and gradient. {where}", fontweight="bold")
    panels = figure.subplots(1, len(cases), squeeze=False)[0]
    for axes, case in zip(panels, cases, strict=True):
        own = [row for row in rows if (row["model"], str(row["case"])) == case]
        libraries = _libraries(own)
        times = {row["library"]: 1e3 * row["median_s"] for row in own}
        heights = [times[library] for library in libraries]
        drawn = axes.bar(
            [NAMES.get(library, library).replace(", ", ",\n") for library in libraries],
            heights,
            color=[COLORS[library] for library in libraries],
        )
        labels = [f"{height:.3g}\n{height / times['lapgrad']:.3g}×" for height in heights]
        axes.bar_label(drawn, labels, fontsize=8)
        axes.margins(y=0.2)
        axes.set_title(_title(own[0]), fontsize=9)
        axes.tick_params(axis="x", labelsize=8)
    panels[0].set_ylabel("milliseconds")
    return figure


def _title(row: Row) -> str:
    sizes = [f"{name} = {value}" for name, value in row["case"].items()]
    lines = [", ".join(sizes[i : i + 2]) for i in range(0, len(sizes), 2)]
    return "\n".join([_MODELS[row["model"]], *lines])
