"""The whole page: one file that needs no other, neither from the network nor beside it."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from importlib import resources
from typing import NamedTuple

from lapgrad import __version__
from lapgrad.report import quantities
from lapgrad.report.findings import EVEN_TEXT
from lapgrad.report.markup import Markup, joined, tag
from lapgrad.report.sections import (
    bars,
    deep_regression,
    machines,
    models,
    notices,
    operators,
    table1,
    table2,
)
from lapgrad.report.sources import KINDS, Group, Problem, Run, groups


class _Part(NamedTuple):
    """What a kind of results contributes."""

    title: str
    cards: Callable[[Group], list[Markup]]
    body: Callable[[Group, int], Markup]


_PARTS = {
    "ops": _Part(operators.TITLE, operators.cards, operators.body),
    "models": _Part(models.TITLE, models.cards, models.body),
    "table1": _Part(table1.TITLE, table1.cards, table1.body),
    "table2": _Part(table2.TITLE, table2.cards, table2.body),
    "deep_gp_regression": _Part(deep_regression.TITLE, deep_regression.cards, deep_regression.body),
}


def page(runs: Sequence[Run], problems: Sequence[Problem] = ()) -> str:
    """HTML of the page.

    Args:
        runs: the files that are shown.
        problems: files that could not be used; the page says so.
    """
    by_kind = {kind: groups(runs, kind) for kind in KINDS}
    every = [group for found in by_kind.values() for group in found]
    shown = [(kind, found) for kind, found in by_kind.items() if found]
    headings = [(kind, _PARTS[kind].title) for kind, _ in shown]
    has_bars = bool(bars.bars_of(runs))
    headings += [("bars", bars.TITLE)] if has_bars else []
    headings += [("machines", machines.TITLE), ("reading", "How to read this")]
    content = tag(
        "main",
        _head(runs, every),
        notices.notices(runs, problems, every),
        tag(
            "nav",
            tag("ul", (tag("li", tag("a", title, href=f"#{name}")) for name, title in headings)),
            aria_label="Contents",
        ),
        _section("short", "In short", tag("div", _cards(shown, runs), class_="cards")),
        (_section(kind, _PARTS[kind].title, _of_kind(kind, found)) for kind, found in shown),
        _section("bars", bars.TITLE, bars.body(runs)) if has_bars else None,
        _section("machines", machines.TITLE, _machines(every)),
        _section("reading", "How to read this", _explained()),
    )
    return _document(content)


def _head(runs: Sequence[Run], every: Sequence[Group]) -> Markup:
    figures = quantities.counted(sum(len(run.rows) for run in runs), "figure")
    files = quantities.counted(len(runs), "file")
    dates = sorted(run.machine.date[:10] for run in runs if run.machine.date)
    period = f", {dates[0]}" if dates else ""
    period += f" to {dates[-1]}" if dates and dates[-1] != dates[0] else ""
    places = list(dict.fromkeys(_place(group) for group in every))
    return tag(
        "header",
        tag("h1", "lapgrad, measured"),
        tag("p", f"{figures} from {files}{period}"),
        tag("ul", (tag("li", place) for place in places), class_="places"),
    )


def _place(group: Group) -> str:
    version, commit, torch = group.machine.versions
    known = (("lapgrad", version), ("commit", commit), ("torch", torch))
    versions = ", ".join(f"{name} {text}" for name, text in known if text)
    # Groups of another kind have letters of their own.
    name = f"{_PARTS[group.kind].title}, {group.letter}: " if group.letter else ""
    return f"{name}{group.machine.name}{'; ' if versions else ''}{versions}"


def _cards(shown: Sequence[tuple[str, Sequence[Group]]], runs: Sequence[Run]) -> list[Markup]:
    found = [card for kind, several in shown for group in several for card in _PARTS[kind].cards(group)]
    return found + bars.cards(runs)


def _of_kind(kind: str, several: Sequence[Group]) -> Markup:
    """One group has the section for itself; several stand one after the other, each under its own heading."""
    part = _PARTS[kind]
    if len(several) == 1:
        return part.body(several[0], 3)
    overview = operators.overview(several) if kind == "ops" else None
    bodies = [
        joined(tag("h3", f"{group.letter}: {group.title}"), _files(group), part.body(group, 4))
        for group in several
    ]
    return joined(overview, bodies)


def _files(group: Group) -> Markup:
    return tag("p", "From ", ", ".join(run.path.name for run in group.runs), ".", class_="soft")


def _machines(every: Sequence[Group]) -> list[Markup]:
    return [machines.body(run, group, 3) for group in every for run in group.runs]


def _explained() -> Markup:
    texts = (
        "Times are medians. What stands beside them (±, quartiles) is the spread of the samples of one run. "
        "Speed-ups are ratios of medians within one run; figures of different runs are never divided.",
        f"Faster and slower: by more than {EVEN_TEXT}. What lies within counts as equal.",
        "Forward: no gradient is asked for. Backward: all gradients, on a graph that is kept. "
        "Step: both, with a new graph.",
        "Flops: one multiply-add is 2. They count what lapgrad's algorithm does, and the same count divides "
        "the time of others.",
        "Extra memory: the peak during one call beyond what was in use before it.",
    )
    return joined(*(tag("p", text) for text in texts))


def _section(identity: str, title: str, *content: Markup | Sequence[Markup] | None) -> Markup:
    return tag("section", tag("h2", title), content, id=identity)


def _document(content: Markup) -> str:
    style, script = (_asset(name) for name in ("style.css", "page.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    # Nothing is fetched, and no script runs but our own, whatever a results file holds.
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="generator", content=f"lapgrad {__version__}"),
        tag("title", "lapgrad, measured"),
        tag("link", rel="icon", href="data:,"),
        tag("style", Markup(style)),
    )
    body = tag("body", content, tag("script", Markup(script)))
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"


def _asset(name: str) -> str:
    return (resources.files("lapgrad.report") / name).read_text(encoding="utf-8")
