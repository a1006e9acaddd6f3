"""Names of libraries with the version that was measured."""

from __future__ import annotations

from lapgrad.report.sources import Group, Run


def versioned(group: Group, library: str) -> str:
    """`torch 2.13.0`, or the name alone where no run has the version."""
    versions = dict.fromkeys(version for run in group.runs if (version := version_of(run, library)))
    return " ".join([library, " and ".join(versions)]).strip()


def version_of(run: Run, library: str) -> str:
    """The version of a library in one run: of a peer in its own process, else of the machine."""
    peer = run.results.peers.get(library)
    if isinstance(peer, dict) and peer.get("version"):
        return str(peer["version"])
    machine = run.machine
    return machine.fact(library, "version") or machine.fact("versions", library)


def lacking(run: Run) -> dict[str, dict[str, str]]:
    """Of libraries that took part: the cases they were not timed on, and why."""
    return {
        str(name): {str(case): str(why) for case, why in peer["lacks"].items()}
        for name, peer in run.results.peers.items()
        if isinstance(peer, dict) and isinstance(peer.get("lacks"), dict) and peer["lacks"]
    }


def missing(run: Run) -> dict[str, str]:
    """Libraries that could not be compared with, and why."""
    return {
        str(name): str(peer["missing"])
        for name, peer in run.results.peers.items()
        if isinstance(peer, dict) and peer.get("missing")
    }
