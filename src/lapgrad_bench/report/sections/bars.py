"""Bars: the speed and memory that lapgrad is held to, reached or missed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lapgrad_bench.report import quantities
from lapgrad_bench.report.cards import Card, Item
from lapgrad_bench.report.sources import Run
from lapgrad_bench.report.tables import NOTHING, Cell, Column, Table

TITLE = "Bars"


@dataclass(frozen=True)
class Bar:
    """A number that was wanted, and the one that was measured; None: it could not be measured.

    ``device`` is the same number for the GPU's work alone, without its waiting for the host.
    """

    what: str
    wanted: str
    figure: float | None
    unit: str
    passed: bool | None
    file: str
    device: float | None = None

    @property
    def measured_text(self) -> str:
        """The measured number with its unit."""
        return "not measured" if self.figure is None else self._format(self.figure)

    @property
    def device_text(self) -> str:
        """The number of the GPU's work alone, with its unit."""
        return NOTHING if self.device is None else self._format(self.device)

    def _format(self, figure: float) -> str:
        return f"{quantities.format_number(figure, 3)}{self.unit}"


def collect_bars(runs: Sequence[Run]) -> list[Bar]:
    """Return all bars of all files."""
    return [
        _make_bar(entry, run.path.name)
        for run in runs
        for entry in run.results.bars
        if isinstance(entry, dict)
    ]


def _make_bar(entry: dict[str, Any], file: str) -> Bar:
    unit, wanted, figure = (
        str(entry.get("unit") or ""),
        entry.get("wanted"),
        _read_number(entry.get("figure")),
    )
    text = f"{wanted:g}{unit}" if isinstance(wanted, (int, float)) else str(wanted or "")
    sense = str(entry.get("sense") or "")
    return Bar(
        what=str(entry.get("what") or "?"),
        # In some files the text in "wanted" already has the sense (such as "<=") and the unit.
        wanted=text if not sense or text.startswith(sense) else f"{sense} {text}",
        figure=figure,
        unit=unit,
        passed=bool(entry["passed"]) if figure is not None and entry.get("passed") is not None else None,
        file=file,
        device=_read_number(entry.get("device")),
    )


def _read_number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def make_cards(bars: Sequence[Bar]) -> list[Card]:
    """Return a card that counts the bars and names those that were missed; none where there are no bars."""
    missed = [Item(f"{b.what}: {b.measured_text}, wanted {b.wanted}") for b in bars if b.passed is False]
    judged = sum(bar.passed is not None for bar in bars)
    content = {"judged": judged, "missed": missed, "unknown": len(bars) - judged}
    return [Card("Bars", "bars", content)] if bars else []


def make_table(bars: Sequence[Bar]) -> Table:
    """Return a table of the bars, missed ones first."""
    order = {False: 0, None: 1, True: 2}
    bars = sorted(bars, key=lambda bar: order[bar.passed])
    has_files, has_gpu = len({bar.file for bar in bars}) > 1, any(bar.device is not None for bar in bars)
    verdicts = {
        True: Cell("reached", 2, "good"),
        False: Cell("missed", 0, "bad"),
        None: Cell("not measured", 1, "soft"),
    }
    columns = [Column("what"), Column("wanted", True), Column("measured", True), Column("verdict")]
    columns += [Column("GPU's work alone", True)] if has_gpu else []
    columns += [Column("file")] if has_files else []
    rows = [
        [
            Cell(bar.what),
            Cell(bar.wanted),
            Cell(bar.measured_text, bar.figure),
            verdicts[bar.passed],
            *([Cell(bar.device_text, bar.device)] if has_gpu else []),
            *([Cell(bar.file, style="soft")] if has_files else []),
        ]
        for bar in bars
    ]
    return Table("bars-table", columns, rows)
