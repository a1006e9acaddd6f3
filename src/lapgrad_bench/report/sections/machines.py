"""Where the numbers come from: files, commands, machines, versions."""

from __future__ import annotations

from typing import Any

from lapgrad_bench.report.sources import Group, Run
from lapgrad_bench.report.versions import find_missing_peers, find_skipped_cases, find_version

TITLE = "Machines and commands"

_UNKNOWN = "not recorded"


def list_facts(run: Run, group: Group) -> dict[str, Any]:
    """Return all that is known of the origin of one file, for sections/machines.html.j2."""
    machine, results = run.machine, run.results
    version, commit, torch = machine.versions
    absent = find_missing_peers(run)
    peers = {name: find_version(run, name) for name in results.peers if name not in absent}
    facts = {
        "part of": f"{group.letter}: {group.title}" if group.letter else "",
        "command": results.command or _UNKNOWN,
        "date": machine.date or _UNKNOWN,
        "state": "complete" if results.complete else "interrupted, or still running: what is here is valid",
        "CPU": machine.cpu,
        "GPU": machine.gpu,
        "threads": machine.get_fact("threads") or machine.get_fact("torch", "threads") or _UNKNOWN,
        "load when it began": _format_load(run),
        "lapgrad": f"{version or f'version {_UNKNOWN}'}{f', commit {commit}' if commit else ''}",
        "torch": torch or _UNKNOWN,
        "compared with": ", ".join(f"{name} {v}".strip() for name, v in peers.items()),
        "BLAS": machine.get_fact("blas", "provider") or machine.get_fact("blas"),
        "Python": machine.get_fact("lapgrad", "python"),
        "system": machine.get_fact("lapgrad", "platform"),
        "packages": machine.get_fact("versions").replace("=", " "),
        "environment": machine.get_fact("environment"),
    }
    facts |= {f"not compared with {name}": why for name, why in absent.items()}
    skipped = {
        name: [f"{case}: {why}" for case, why in cases.items()]
        for name, cases in find_skipped_cases(run).items()
    }
    return {
        "file": run.path.name,
        "kind": results.kind,
        "facts": {term: text for term, text in facts.items() if text},
        "skipped": skipped,
    }


def _format_load(run: Run) -> str:
    load = run.machine.facts.get("load_average")
    if not isinstance(load, list) or not load or not isinstance(load[0], (int, float)):
        return ""
    return f"{load[0]:.2f}{' (busy)' if run.machine.is_busy else ''}"
