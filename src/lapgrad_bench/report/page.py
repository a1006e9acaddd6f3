"""The whole page: one HTML file that needs no other, neither from the network nor beside it."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any, Protocol

from lapgrad import __version__, _exceptions
from lapgrad_bench.report import quantities
from lapgrad_bench.report.cards import Card
from lapgrad_bench.report.characters import replace_forbidden
from lapgrad_bench.report.findings import EVEN_TEXT
from lapgrad_bench.report.sections import (
    bars,
    deep_regression,
    machines,
    models,
    notices,
    operators,
    sweep,
    table1,
    table2,
)
from lapgrad_bench.report.sources import KINDS, Group, Problem, Run, group_runs


class _Section(Protocol):
    """The functions that the module of each kind of results has to have."""

    @property
    def TITLE(self) -> str: ...  # noqa: N802

    def make_cards(self, group: Group) -> list[Card]: ...

    def make_body(self, group: Group) -> dict[str, Any]: ...


_SECTIONS: Mapping[str, _Section] = {
    "ops": operators,
    "sweep": sweep,
    "models": models,
    "table1": table1,
    "table2": table2,
    "deep_gp_regression": deep_regression,
}
"""By kind of results; sections/KIND.html.j2 renders what `make_body` returns."""


def render_page(runs: Sequence[Run], problems: Sequence[Problem] = ()) -> str:
    """Return the HTML of the page.

    Args:
        runs: The files that are shown.
        problems: Files that could not be used; the page says so.

    Raises:
        MissingDependencyError: Jinja2 or matplotlib is not installed.
    """
    try:
        import jinja2

        from lapgrad_bench.report.svg import SvgEmbedder, use_page_style
    except ImportError as error:
        raise _exceptions.MissingDependencyError(
            "the report needs Jinja2 and matplotlib: pip install 'lapgrad[bench]'"
        ) from error
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=replace_forbidden,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "seconds": quantities.format_seconds,
        "memory": quantities.format_memory,
        "ratio": quantities.format_ratio,
        "percent": quantities.format_percent,
        "number": quantities.format_number,
        "count": quantities.format_count,
        "thousands": "{:,}".format,
        "embed": SvgEmbedder().embed,
    }
    with use_page_style():
        return environment.get_template("page.html.j2").render(_collect_content(runs, problems))


def _collect_content(runs: Sequence[Run], problems: Sequence[Problem]) -> dict[str, Any]:
    """Return the variables of page.html.j2."""
    by_kind = {kind: found for kind in KINDS if (found := group_runs(runs, kind))}
    groups = [group for found in by_kind.values() for group in found]
    found_bars = bars.collect_bars(runs)
    dates = sorted(run.machine.date[:10] for run in runs if run.machine.date)
    style, script = (
        (resources.files(__package__) / name).read_text(encoding="utf-8") for name in ("style.css", "page.js")
    )
    return {
        "version": __version__,
        "style": style,
        "style_hash": _compute_hash(style),
        "script": script,
        "script_hash": _compute_hash(script),
        "figures": sum(len(run.rows) for run in runs),
        "files": len(runs),
        "period": list(dict.fromkeys(dates[:1] + dates[-1:])),
        "places": list(dict.fromkeys(_describe_place(group) for group in groups)),
        "notices": notices.write_notices(runs, problems, groups),
        "cards": [card for group in groups for card in _SECTIONS[group.kind].make_cards(group)]
        + bars.make_cards(found_bars),
        "sections": [
            {
                "kind": kind,
                "title": _SECTIONS[kind].TITLE,
                "overview": operators.make_overview(several) if kind == "ops" else None,
                "groups": [
                    {
                        "title": f"{group.letter}: {group.title}" if group.letter else "",
                        "files": [run.path.name for run in group.runs],
                        "body": _SECTIONS[kind].make_body(group),
                    }
                    for group in several
                ],
            }
            for kind, several in by_kind.items()
        ],
        "bars_title": bars.TITLE,
        "bars": bars.make_table(found_bars) if found_bars else None,
        "machines_title": machines.TITLE,
        "machines": [machines.list_facts(run, group) for group in groups for run in group.runs],
        "even": EVEN_TEXT,
    }


def _describe_place(group: Group) -> str:
    """Return the machine and the versions of a group."""
    known = zip(("lapgrad", "commit", "torch"), group.machine.versions, strict=True)
    versions = ", ".join(f"{name} {text}" for name, text in known if text)
    # Groups of another kind have letters of their own.
    name = f"{_SECTIONS[group.kind].TITLE}, {group.letter}: " if group.letter else ""
    return f"{name}{group.machine.name}{'; ' if versions else ''}{versions}"


def _compute_hash(text: str) -> str:
    """Return the hash by which a Content-Security-Policy allows a script or a style."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
