"""Bars: figures that lapgrad holds itself to, reached or missed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lapgrad.report import quantities
from lapgrad.report.cards import card, named
from lapgrad.report.markup import Markup, tag
from lapgrad.report.sources import Run
from lapgrad.report.tables import Cell, Column, table

TITLE = "Bars"


@dataclass(frozen=True)
class Bar:
    """A figure that was wanted, and the one that was measured; None: it could not be measured.

    ``device`` is the same figure of a GPU's work alone, without its waiting for the host.
    """

    what: str
    wanted: str
    figure: float | None
    unit: str
    passed: bool | None
    file: str
    device: float | None = None

    @property
    def measured(self) -> str:
        """With its unit."""
        return "not measured" if self.figure is None else self._text(self.figure)

    @property
    def of_device(self) -> str:
        """Likewise."""
        return "-" if self.device is None else self._text(self.device)

    def _text(self, figure: float) -> str:
        return f"{quantities.number(figure, 3)}{self.unit}"


def bars_of(runs: Sequence[Run]) -> list[Bar]:
    """All bars of all files."""
    return [
        _bar(entry, run.path.name) for run in runs for entry in run.results.bars if isinstance(entry, dict)
    ]


def _bar(entry: dict[str, Any], file: str) -> Bar:
    unit, wanted, figure = str(entry.get("unit") or ""), entry.get("wanted"), _number(entry.get("figure"))
    text = f"{wanted:g}{unit}" if isinstance(wanted, (int, float)) else str(wanted or "")
    sense = str(entry.get("sense") or "")
    return Bar(
        what=str(entry.get("what") or "?"),
        # Some writers have the sense and the unit in the text of what is wanted.
        wanted=text if not sense or text.startswith(sense) else f"{sense} {text}",
        figure=figure,
        unit=unit,
        passed=bool(entry["passed"]) if figure is not None and entry.get("passed") is not None else None,
        file=file,
        device=_number(entry.get("device")),
    )


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def cards(runs: Sequence[Run]) -> list[Markup]:
    """How many were reached; those missed are named."""
    found = bars_of(runs)
    if not found:
        return []
    judged = [bar for bar in found if bar.passed is not None]
    missed = [bar for bar in judged if not bar.passed]
    lead = tag(
        "p",
        tag("strong", f"{len(judged) - len(missed):,} of {quantities.counted(len(judged), 'bar')} reached"),
        f"; {quantities.counted(len(missed), 'is', 'are')} missed:" if missed else ".",
        class_="lead",
    )
    unknown = len(found) - len(judged)
    note = tag("p", f"{unknown:,} could not be measured here.", class_="soft") if unknown else None
    return [card("Bars", lead, named([f"{b.what}: {b.measured}, wanted {b.wanted}" for b in missed]), note)]


def body(runs: Sequence[Run]) -> Markup:
    """Missed ones first."""
    order = {False: 0, None: 1, True: 2}
    found = sorted(bars_of(runs), key=lambda bar: order[bar.passed])
    several, on_a_gpu = len({bar.file for bar in found}) > 1, any(bar.device is not None for bar in found)
    words = {
        True: Cell("reached", 2, "good"),
        False: Cell("missed", 0, "bad"),
        None: Cell("not measured", 1, "soft"),
    }
    columns = [
        Column("what"),
        Column("wanted", figures=True),
        Column("measured", figures=True),
        Column("verdict"),
    ]
    columns += [Column("GPU's work alone", figures=True)] if on_a_gpu else []
    columns += [Column("file")] if several else []
    rows = [
        [
            Cell(bar.what),
            Cell(bar.wanted),
            Cell(bar.measured, bar.figure),
            words[bar.passed],
            *([Cell(bar.of_device, bar.device)] if on_a_gpu else []),
            *([Cell(bar.file, style="soft")] if several else []),
        ]
        for bar in found
    ]
    return table("bars-table", "Figures that were to be reached.", columns, rows)
