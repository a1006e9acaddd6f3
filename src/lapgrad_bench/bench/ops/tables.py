"""Makes tables from the rows of results of operators."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from lapgrad_bench.bench.ops.inputs import Shape
from lapgrad_bench.common.results import Row
from lapgrad_bench.common.text_tables import Table, format_milliseconds

_NONE = "-"

CaseKey = tuple[str, tuple[int, ...], str, str, int]
"""(operator, shape, dtype, device, threads): identifies a case."""


def make_case_key(row: Row) -> CaseKey:
    """Return the case of a row, without phase and library.

    Example:
        >>> row = {"operator": "potrf", "shape": [8, 8], "dtype": "float64", "device": "cpu", "threads": 2}
        >>> make_case_key(row)
        ('potrf', (8, 8), 'float64', 'cpu', 2)
    """
    return row["operator"], tuple(row["shape"]), row["dtype"], row["device"], row["threads"]


def format_shape(sizes: Sequence[int]) -> str:
    """Return a shape as text, with one number for a square matrix.

    Example:
        >>> format_shape([64, 64]), format_shape([1000, 8, 8])
        ('64', '1000×8×8')
    """
    return str(Shape(sizes[-2], sizes[-1], tuple(sizes[:-2])))


def list_libraries(rows: Iterable[Row]) -> list[str]:
    """Return all libraries but lapgrad in the order of the rows, torch first."""
    names = dict.fromkeys(row["library"] for row in rows)
    return sorted((name for name in names if name != "lapgrad"), key=lambda name: name != "torch")


def make_timing_table(rows: Sequence[Row], others: Sequence[str] | None = None) -> Table:
    """Return a table with one line per case and phase: times, speed-ups, rates, peak memory.

    Args:
        rows: rows of results of kind "ops".
        others: libraries that get columns; by default all that have rows.
    """
    others = list_libraries(rows) if others is None else others
    headings = ["operator", "shape", "dtype", "threads", "phase", "lapgrad ms"]
    headings += [f"{name} ms (faster)" for name in others]
    headings += ["rate", "of gemm", "MB", "torch MB"]
    lines = []
    for key, phases in _group_rows(rows).items():
        for phase, found in phases.items():
            own = found["lapgrad"]
            line = [
                key[0],
                format_shape(key[1]),
                key[2],
                str(key[4]),
                phase,
                format_milliseconds(own["median_s"]),
            ]
            for name in others:
                time, faster = _format_comparison(own, found.get(name))
                line.append(time if faster == _NONE else f"{time} ({faster})")
            line += [_format_rate(own), _format_percent(own["gemm_fraction"])]
            line += [_format_megabytes(found.get(name)) for name in ("lapgrad", "torch")]
            lines.append(line)
    return _drop_empty_columns((headings, lines))


def make_narrow_table(rows: Sequence[Row], others: Sequence[str] | None = None) -> Table:
    """Return a table for terminals of 80 columns: lapgrad's time, and how many times faster it is than each.

    Example:
        >>> case = {"operator": "potrf", "shape": [8, 8], "dtype": "float64", "device": "cpu", "threads": 2}
        >>> case |= {"phase": "forward", "gemm_fraction": 0.5}
        >>> times = {"lapgrad": 1e-3, "torch": 4e-3}
        >>> rows = [{**case, "library": name, "median_s": time} for name, time in times.items()]
        >>> from lapgrad_bench.common.text_tables import format_plain
        >>> print(format_plain(make_narrow_table(rows)))
        operator  shape  type  phase  ms  torch  of gemm
        potrf     8      f64   fwd    1   4.0×   50 %
    """
    others = list_libraries(rows) if others is None else others
    headings = ["operator", "shape", "type", "threads", "phase", "ms", *others, "of gemm"]
    lines = []
    for key, phases in _group_rows(rows).items():
        for phase, found in phases.items():
            own = found["lapgrad"]
            lines.append(
                [
                    key[0],
                    format_shape(key[1]),
                    key[2].replace("float", "f"),
                    str(key[4]),
                    {"forward": "fwd", "backward": "bwd"}.get(phase, phase),
                    format_milliseconds(own["median_s"]),
                    *(_format_comparison(own, found.get(name))[1] for name in others),
                    _format_percent(own["gemm_fraction"]),
                ]
            )
    return _drop_empty_columns((headings, lines))


def make_short_table(rows: Sequence[Row], others: Sequence[str] | None = None) -> Table:
    """Return a table for documents: one line per case, with time and speed-up of each phase."""
    others = list_libraries(rows) if others is None else others
    phases = list(dict.fromkeys(row["phase"] for row in rows))
    headings = ["operator", "shape", "dtype"]
    for phase in phases:
        headings.append(f"{phase}, ms")
        for name in others:
            headings += [f"{name}, ms", "faster"]
    lines = []
    for key, found in _group_rows(rows).items():
        line = [f"`{key[0]}`", format_shape(key[1]), key[2]]
        for phase in phases:
            own = found.get(phase, {}).get("lapgrad")
            line.append(format_milliseconds(own["median_s"]) if own else _NONE)
            for name in others:
                line += _format_comparison(own, found.get(phase, {}).get(name))
        lines.append(line)
    return headings, lines


def make_scaling_table(rows: Sequence[Row]) -> Table:
    """Return a table of lapgrad's speed-up over its time with the fewest threads."""
    own = [row for row in rows if row["library"] == "lapgrad"]
    counts = sorted({row["threads"] for row in own})
    times = {(*make_case_key(row), row["phase"]): row["median_s"] for row in own}
    lines = []
    for name, shape, dtype, device, phase in dict.fromkeys(
        (*make_case_key(row)[:4], row["phase"]) for row in own
    ):
        found = [times.get((name, shape, dtype, device, count, phase)) for count in counts]
        gains = [f"{found[0] / time:.2f}×" if found[0] and time else _NONE for time in found]
        lines.append([name, format_shape(shape), dtype, phase, *gains])
    return ["operator", "shape", "dtype", "phase", *(f"{count} threads" for count in counts)], lines


def shorten_failure(row: Row) -> str:
    """Return in a few words why a row has no figures.

    Example:
        >>> shorten_failure({"error": "torch did not finish within 120 s (its first call)"})
        'torch did not finish within 120 s'
        >>> shorten_failure({"error": "torch crashed: signal SIGSEGV (backward)"})
        'torch crashed'
    """
    return re.split(r"[:(]", row["error"])[0].strip()


def list_failure_notes(rows: Iterable[Row]) -> list[str]:
    """Return notes on cases that a library did not finish, to be printed below a table.

    Example:
        >>> case = {"operator": "det", "shape": [9, 9], "dtype": "float64", "device": "cpu", "threads": 2}
        >>> list_failure_notes([{**case, "phase": "step", "library": "torch", "error": "torch crashed"}])
        ['det 9 float64, 2 threads: torch crashed']
    """
    found: dict[str, None] = {}
    for row in rows:
        if "error" in row:
            name, sizes, dtype, _, threads = make_case_key(row)
            found[f"{name} {format_shape(sizes)} {dtype}, {threads} threads: {row['error']}"] = None
    return list(found)


def list_peer_notes(peers: dict[str, dict[str, Any]]) -> list[str]:
    """Return notes on other libraries (version, or why they are missing), to be printed below a table.

    Example:
        >>> list_peer_notes({"jax": {"missing": "there is no /opt/python"}})
        ['jax: missing: there is no /opt/python']
    """
    lines = []
    for name, facts in peers.items():
        known = f"{name} {facts['version']}" if "version" in facts else name
        if "missing" in facts:
            lines.append(f"{known}: missing: {facts['missing']}")
        by_reason: dict[str, list[str]] = {}
        for case, why in facts.get("lacks", {}).items():
            by_reason.setdefault(why, []).append(case)
        for why, cases in by_reason.items():
            more = f" and {len(cases) - 3} more" if len(cases) > 3 else ""
            lines.append(f"{known}: not timed on {', '.join(cases[:3])}{more}: {why}")
    return lines


def _group_rows(rows: Iterable[Row]) -> dict[CaseKey, dict[str, dict[str, Row]]]:
    """Return rows by case, phase and library, in the order in which they were measured."""
    found: dict[CaseKey, dict[str, dict[str, Row]]] = {}
    for row in rows:
        found.setdefault(make_case_key(row), {}).setdefault(row["phase"], {})[row["library"]] = row
    return found


def _format_comparison(own: Row | None, other: Row | None) -> list[str]:
    if own is None or other is None:
        return [_NONE, _NONE]
    if "error" in other:
        return [shorten_failure(other), _NONE]
    ratio = other["median_s"] / own["median_s"]
    return [format_milliseconds(other["median_s"]), f"{ratio:.0f}×" if ratio >= 100.0 else f"{ratio:.1f}×"]


def _format_rate(row: Row) -> str:
    if row["flops"] is not None:
        return f"{row['flops'] / row['median_s'] / 1e9:.3g} GF/s"
    return f"{row['bytes'] / row['median_s'] / 1e9:.3g} GB/s"


def _format_percent(fraction: float | None) -> str:
    return _NONE if fraction is None else f"{100.0 * fraction:.0f} %"


def _format_megabytes(row: Row | None) -> str:
    extra = None if row is None else row["extra_bytes"]
    return _NONE if extra is None else f"{extra / 1e6:.1f}"


def _drop_empty_columns(table: Table) -> Table:
    """Drop empty columns of memory and gemm, and the column of threads if all its entries are equal."""
    headings, lines = table
    kept = []
    for i, heading in enumerate(headings):
        values = {line[i] for line in lines}
        optional = heading == "of gemm" or heading.endswith("MB")
        if not (optional and values <= {_NONE}) and not (heading == "threads" and len(values) == 1):
            kept.append(i)
    return [headings[i] for i in kept], [[line[i] for i in kept] for line in lines]
