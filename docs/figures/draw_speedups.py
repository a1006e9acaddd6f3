"""Draws the figures of the README and the performance page, and writes the README's sentences about speed.

    python docs/figures/draw_speedups.py [RESULTS]

RESULTS is a results file of ``lapgrad bench ops``. What the figures need of it is in ``operators.json``
beside this file, which is read when no argument is given; it also has the command that measured. Cases in
which other programs used the cores are left out. The times of the lines that the README changes come from
``three_lines.json`` (``measure_three_lines.py``). Writes ``speedups.png`` and ``heat_map.png`` beside it, and
replaces what stands between the two comments "generated" in README.md.
"""

from __future__ import annotations

import json
import math
import re
import statistics
import sys
import textwrap
from pathlib import Path
from typing import Any, NamedTuple

from lapgrad_bench.bench.ops.tables import format_shape
from lapgrad_bench.common.plotting import label_round_values, make_figure

FOLDER = Path(__file__).resolve().parent
README = FOLDER.parents[1] / "README.md"
RESULTS = FOLDER / "operators.json"
THREE_LINES = FOLDER / "three_lines.json"
BLOCK = re.compile(
    r"(<!-- generated: docs/figures/draw_speedups\.py -->\n).*?(<!-- /generated -->)", re.DOTALL
)

#: What the bars of the README show: one large matrix, and many small ones.
LARGE, SMALL = (1024, 1024), (1000, 8, 8)
#: Operator -> what users call it.
BARS = {
    "potrf": "Cholesky factor",
    "trsm": "triangular solve",
    "syrk": "A Aᵀ",
    "gelqf": "LQ / QR",
    "syevd": "eigenvalues",
    "gesvd": "singular values",
    "potri": "inverse from its factor",
    "fused.mvn_nll": "Gaussian log density",
}
PHASES = ("forward", "backward")
LEAST_GEMM_RATE = 0.6
"""The least speed of torch.mm beside a case, as a part of its best in the run."""
COLOURS = {"forward": "#9db8d9", "backward": "#1f4e8c"}


class Comparison(NamedTuple):
    """Times of a call in seconds, and bytes beyond its operands where they were measured."""

    own: float
    torch: float
    own_bytes: int | None
    torch_bytes: int | None

    @property
    def faster(self) -> float:
        """How many times faster lapgrad is than torch."""
        return self.torch / self.own


Comparisons = dict[tuple[str, tuple[int, ...], str], Comparison]


def read_comparisons(run: dict[str, Any]) -> Comparisons:
    """Return (operator, shape, phase) -> comparison with torch, for cases that both have finished."""
    found: dict[tuple[str, tuple[int, ...], str], dict[str, Any]] = {}
    for row in run["rows"]:
        key = (row["operator"], tuple(row["shape"]), row["phase"])
        found.setdefault(key, {})[row["library"]] = row
    return {
        key: Comparison(
            rows["lapgrad"]["median_s"],
            rows["torch"]["median_s"],
            rows["lapgrad"]["extra_bytes"],
            rows["torch"]["extra_bytes"],
        )
        for key, rows in found.items()
        if all(rows.get(name, {}).get("median_s") for name in ("lapgrad", "torch"))
    }


def describe_machine(*runs: dict[str, Any]) -> str:
    """Return processor, threads, version of torch and dates in a line; all runs are of one machine."""
    machines = [run["machine"] for run in runs]
    ((cpu, threads, torch),) = {(m["cpu"], m["threads"], m["torch"].split("+")[0]) for m in machines}
    dates = " and ".join(sorted({machine["date"][:10] for machine in machines}))
    return f"{cpu}, {threads} threads, torch {torch}, {dates}"


def write_sentences(run: dict[str, Any], three_lines: dict[str, Any]) -> str:
    """Return the README's table of times and memory, and the figure with its caption."""
    found = read_comparisons(run)
    seconds = {name: of["backward"] for name, of in three_lines["seconds"].items()}
    factor, factors = found["potrf", LARGE, "backward"], found["potrf", SMALL, "backward"]
    examples = {
        f"the loss above, `K` of order {three_lines['order']}": (seconds["lapgrad"], seconds["torch"]),
        "a Cholesky factor of order 1024": (factor.own, factor.torch),
        "1000 Cholesky factors of order 8": (factors.own, factors.torch),
    }
    own, other = _find_buffers(run)
    medians = [
        statistics.median(case.faster for (_, _, of), case in found.items() if of == phase)
        for phase in PHASES
    ]
    ahead = sum(case.faster >= 0.995 for case in found.values())
    caption = (
        f"{describe_machine(run, three_lines)}, float64. lapgrad was at least as fast as torch in {ahead} of "
        f"{len(found)} cases, and in the median {medians[0]:.1f} times faster forward and {medians[1]:.1f} "
        "times backward ([performance](docs/performance.md))."
    )
    memory = "memory for the second row, in matrices of order 1024"
    lines = [
        "| gradient of | torch | lapgrad | |",
        "|---|---:|---:|---|",
        *(
            f"| {name} | {_ms(theirs)} | {_ms(mine)} | {theirs / mine:.1f} times faster |"
            for name, (mine, theirs) in examples.items()
        ),
        f"| {memory} | {other:.1f} | {own:.1f} | {other / own:.0f} times less |",
        "",
        "![How many times faster than torch, by operation](docs/figures/speedups.png)",
        "",
        textwrap.fill(caption, 100),
    ]
    return "\n".join(lines) + "\n"


def _find_buffers(run: dict[str, Any]) -> tuple[float, float]:
    """Return the memory of the gradient of a Cholesky factor, in matrices: lapgrad's and torch's."""
    found = {}
    for row in run["rows"]:
        if (row["operator"], row["phase"]) == ("potrf", "backward") and row["extra_bytes"]:
            found[row["library"]] = row["extra_bytes"] / (8 * row["shape"][-1] ** 2)
    return found["lapgrad"], found["torch"]


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2g} ms" if seconds < 0.1 else f"{seconds * 1e3:.0f} ms"


def draw_bars(found: Comparisons, path: Path) -> None:
    """Draw how many times faster each operation is, for one large matrix and for many small ones."""
    figure = make_figure(9.0, 3.9)
    panels = figure.subplots(1, 2, sharey=True)
    titles = ("one matrix of order 1024", "1000 matrices of order 8")
    for axes, shape, title in zip(panels, (LARGE, SMALL), titles, strict=True):
        for i, phase in enumerate(PHASES):
            for j, name in enumerate(BARS):
                case = found.get((name, shape, phase))
                if case is None:
                    continue
                at = len(BARS) - j + 0.2 - 0.4 * i
                label = phase if j == 0 else None
                axes.barh(at, case.faster, height=0.38, left=0.0, color=COLOURS[phase], label=label)
                axes.text(case.faster * 1.05, at, f"{case.faster:.1f}×", va="center", fontsize=8)
        axes.axvline(1.0, color="black", linewidth=0.8)
        axes.set_xscale("log")
        ratios = [case.faster for (name, of, _), case in found.items() if of == shape and name in BARS]
        axes.set_xlim(min(0.7, 0.8 * min(ratios)), 1.6 * max(ratios))
        label_round_values(axes.xaxis)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("times faster than torch")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_yticks([len(BARS) - j for j in range(len(BARS))], list(BARS.values()))
    figure.legend(
        *panels[1].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False, fontsize=9
    )
    figure.savefig(path, dpi=160)


def draw_heat_map(found: Comparisons, path: Path) -> None:
    """Draw how many times faster every operator is at every size, forward and backward."""
    from matplotlib.colors import TwoSlopeNorm

    names = list(dict.fromkeys(key[0] for key in found))
    shapes = sorted({key[1] for key in found}, key=lambda shape: (len(shape), math.prod(shape)))
    figure = make_figure(10.0, 0.9 + 0.32 * len(names))
    panels = figure.subplots(1, 2, sharey=True)
    norm = TwoSlopeNorm(0.0, vmin=-1.0, vmax=math.log2(16.0))
    for axes, phase in zip(panels, PHASES, strict=True):
        grid = [
            [
                math.log2(found[name, shape, phase].faster) if (name, shape, phase) in found else math.nan
                for shape in shapes
            ]
            for name in names
        ]
        axes.imshow(grid, cmap="RdBu", norm=norm, aspect="auto")
        for i, row in enumerate(grid):
            for j, value in enumerate(row):
                if math.isfinite(value):
                    colour = "white" if value > 2.6 or value < -0.8 else "black"
                    faster = 2.0**value
                    text = f"{faster:.0f}" if faster >= 10 else f"{faster:.1f}"
                    axes.text(j, i, text, ha="center", va="center", fontsize=8, color=colour)
        axes.set_xticks(
            range(len(shapes)), [format_shape(s) for s in shapes], rotation=40, ha="right", fontsize=8
        )
        axes.set_title(phase, fontsize=10)
    panels[0].set_yticks(range(len(names)), names, fontsize=8)
    figure.savefig(path, dpi=160)


def reduce_results(results: dict[str, Any]) -> dict[str, Any]:
    """Return what the figures need of a results file, without cases in which others used the cores.

    torch.mm is timed beside every case. Where it was much slower than in the rest of the run, the cores were
    not free.
    """
    machine = results["machine"]
    names = ("operator", "shape", "phase", "library", "median_s", "extra_bytes")
    fastest = max(row["gemm_rate"] for row in results["rows"])
    free = [row for row in results["rows"] if row["gemm_rate"] >= LEAST_GEMM_RATE * fastest]
    return {
        "command": re.sub(r" --output \S+", "", results["command"]),
        "machine": {
            "cpu": " ".join(re.sub(r"\((R|TM)\)|Processor", "", machine["cpu"]["model"]).split()),
            "threads": results["options"]["threads"][0],
            "torch": machine["torch"]["version"],
            "date": machine["date"],
        },
        "left_out": len(results["rows"]) - len(free),
        "rows": [{name: row[name] for name in names} for row in free],
    }


def write_run(run: dict[str, Any]) -> None:
    """Write ``operators.json``, one row to a line."""
    rows = ",\n".join(json.dumps(row) for row in run["rows"])
    head = json.dumps({name: value for name, value in run.items() if name != "rows"}, indent=1)
    RESULTS.write_text(f'{head[:-2]},\n "rows": [\n{rows}\n]\n}}\n')


def main() -> None:
    """Write both figures and the README's sentences; with an argument, from that results file."""
    if len(sys.argv) > 1:
        write_run(reduce_results(json.loads(Path(sys.argv[1]).read_text())))
    run = json.loads(RESULTS.read_text())
    found = read_comparisons(run)
    draw_bars(found, FOLDER / "speedups.png")
    draw_heat_map(found, FOLDER / "heat_map.png")
    sentences = write_sentences(run, json.loads(THREE_LINES.read_text()))
    text, count = BLOCK.subn(lambda match: match[1] + sentences + match[2], README.read_text())
    if count != 1:
        raise SystemExit("README.md does not have the two comments between which the sentences go")
    README.write_text(text)


if __name__ == "__main__":
    main()
