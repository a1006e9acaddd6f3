"""Where the figures come from: files, commands, machines, versions."""

from __future__ import annotations

from lapgrad.report import quantities
from lapgrad.report.markup import Content, Markup, joined, tag
from lapgrad.report.sources import Group, Run
from lapgrad.report.versions import lacking, missing, version_of

TITLE = "Machines and commands"


def body(run: Run, group: Group, level: int) -> Markup:
    """All facts of one file."""
    machine, results = run.machine, run.results
    version, commit, torch = machine.versions
    peers = {name: version_of(run, name) for name in results.peers if name not in missing(run)}
    facts: dict[str, Content] = {
        "part of": f"{group.letter}: {group.title}" if group.letter else None,
        "command": tag("code", results.command) if results.command else "not recorded",
        "date": tag("time", machine.date, datetime=machine.date) if machine.date else "not recorded",
        "state": "complete" if results.complete else "interrupted, or still running: what is here is valid",
        "CPU": machine.cpu,
        "GPU": machine.gpu or None,
        "threads": machine.fact("threads") or machine.fact("torch", "threads") or "not recorded",
        "load when it began": _load(run),
        "lapgrad": f"{version or 'version not recorded'}{f', commit {commit}' if commit else ''}",
        "torch": torch or "not recorded",
        "compared with": ", ".join(f"{name} {v}".strip() for name, v in peers.items()) or None,
        "BLAS": machine.fact("blas", "provider") or machine.fact("blas") or None,
        "Python": machine.fact("lapgrad", "python") or None,
        "system": machine.fact("lapgrad", "platform") or None,
        "packages": machine.fact("versions").replace("=", " ") or None,
        "environment": machine.fact("environment") or None,
    }
    for name, why in missing(run).items():
        facts[f"not compared with {name}"] = why
    for name, cases in lacking(run).items():
        facts[f"without {name}"] = _unfolded([f"{case}: {why}" for case, why in cases.items()])
    terms = [joined(tag("dt", term), tag("dd", value)) for term, value in facts.items() if value]
    return joined(tag(f"h{level}", f"{run.path.name} ({results.kind})"), tag("dl", terms, class_="facts"))


def _unfolded(items: list[str]) -> Markup:
    count = quantities.counted(len(items), "case")
    return tag("details", tag("summary", count), tag("ul", (tag("li", item) for item in items)))


def _load(run: Run) -> str | None:
    load = run.machine.facts.get("load_average")
    if not isinstance(load, list) or not load or not isinstance(load[0], (int, float)):
        return None
    return f"{load[0]:.2f}{' (busy)' if run.machine.busy else ''}"
