"""Names of libraries with the version that was measured."""

from __future__ import annotations

from lapgrad_bench.report.sources import Group, Run


def name_with_version(group: Group, library: str) -> str:
    """Return a name like "torch 2.13.0", or the name alone where no run has the version."""
    versions = dict.fromkeys(version for run in group.runs if (version := find_version(run, library)))
    return " ".join([library, " and ".join(versions)]).strip()


def find_version(run: Run, library: str) -> str:
    """Return the version of a library in one run: a peer's own, else that of the machine."""
    peer = run.results.peers.get(library)
    if isinstance(peer, dict) and peer.get("version"):
        return str(peer["version"])
    machine = run.machine
    return machine.get_fact(library, "version") or machine.get_fact("versions", library)


def find_skipped_cases(run: Run) -> dict[str, dict[str, str]]:
    """Return the cases that a library was not timed on, with the reason, for every library that took part."""
    return {
        str(name): {str(case): str(why) for case, why in peer["lacks"].items()}
        for name, peer in run.results.peers.items()
        if isinstance(peer, dict) and isinstance(peer.get("lacks"), dict) and peer["lacks"]
    }


def find_missing_peers(run: Run) -> dict[str, str]:
    """Return the libraries that took no part, with the reason."""
    return {
        str(name): str(peer["missing"])
        for name, peer in run.results.peers.items()
        if isinstance(peer, dict) and peer.get("missing")
    }
