"""The cards at the top of the page: one comparison each, summed up in a sentence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lapgrad_bench.report import findings, quantities
from lapgrad_bench.report.findings import Tally
from lapgrad_bench.report.rows import Measurement
from lapgrad_bench.report.sources import Group
from lapgrad_bench.report.versions import name_with_version

_EQUAL_MEMORY = 2e5
"""Bytes. Peaks are known to some 100 kB; smaller differences count as equal."""

_MOST_LISTED = 8
"""If more cases than this are slower, they are summed up by operator."""


@dataclass(frozen=True)
class Card:
    """A card: `content` is rendered by the macro of this name in cards.html.j2."""

    title: str
    macro: str
    content: Mapping[str, Any]


@dataclass(frozen=True)
class Item:
    """A line of a list, with a figure in bold at its end."""

    text: str
    figure: str = ""


def make_tally_cards(
    group: Group,
    subject: str,
    rows: Sequence[Measurement],
    compute_medians: Callable[[Tally], Mapping[str, float]] | None = None,
) -> list[Card]:
    """Return one card per device, number of threads and peer of a group; ``subject`` begins the titles."""
    return [
        make_tally_card(
            f"{subject}, {findings.name_place(tally.device, tally.threads)}, against {tally.peer}",
            name_with_version(group, tally.peer),
            tally,
            compute_medians(tally) if compute_medians else None,
        )
        for tally in findings.tally_comparisons(findings.compare_libraries(rows))
    ]


def make_tally_card(title: str, peer: str, tally: Tally, medians: Mapping[str, float] | None = None) -> Card:
    """Return the card of a comparison with one library.

    Args:
        title: What was compared, and where.
        peer: The name of the other library, with its version.
        tally: The comparisons.
        medians: Median speed-ups of parts of the cases, by name.
    """
    slower = tally.select("slower")
    items = [Item(str(c.case), quantities.format_ratio(c.ratio)) for c in slower]
    content = {
        "peer": peer,
        "tally": tally,
        "slower": items,
        "by_operator": _sum_up_slower(tally) if len(items) > _MOST_LISTED else [],
        "medians": medians or {},
    }
    return Card(title, "tally", content)


def _sum_up_slower(tally: Tally) -> list[Item]:
    """Return a line for each operator that is slower in any case, those with the largest share first."""
    slower = tally.select("slower")
    items = []
    for name, total in Counter(c.case.subject for c in tally.comparisons).items():
        own = [c for c in slower if c.case.subject == name]
        if own:
            worst = quantities.format_ratio(own[0].ratio)
            items.append((-len(own) / total, Item(f"{name} in {len(own):,} of {total:,}, at worst", worst)))
    return [item for _, item in sorted(items, key=lambda pair: pair[0])]


def summarise_memory(rows: Sequence[Measurement]) -> dict[str, Any] | None:
    """Return in how many cases lapgrad takes less memory than others, equally much, and more.

    The result is None where no memory of others was measured.
    """
    found = findings.compare_memory(rows)
    if not found:
        return None
    less = [f for f in found if f.theirs - f.ours > _EQUAL_MEMORY]
    more = sorted((f for f in found if f.ours - f.theirs > _EQUAL_MEMORY), key=lambda f: f.theirs / f.ours)
    items = [
        Item(
            f"{f.case}: {quantities.format_memory(f.ours)}, {f.peer} {quantities.format_memory(f.theirs)}",
        )
        for f in more
    ]
    return {
        "total": len(found),
        "less": len(less),
        "equal": len(found) - len(less) - len(more),
        "more": items,
    }


def list_failures(rows: Sequence[Measurement]) -> list[Item]:
    """Return a line for each library that has no time on a case, with the reason."""
    return [
        Item(f"{row.library}, {row.case}: {row.failure or 'no time'}") for row in rows if row.timing is None
    ]
