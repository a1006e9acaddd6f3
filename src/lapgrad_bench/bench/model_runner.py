"""Times criteria of models, all libraries in turns, and measures their memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch

from lapgrad_bench.bench import peer_cases
from lapgrad_bench.bench.activity import Activity
from lapgrad_bench.bench.agreement import DisagreementError
from lapgrad_bench.bench.memory import measurable, peak_extra_bytes
from lapgrad_bench.bench.model_cases import Contest, ModelCase
from lapgrad_bench.bench.peers import Peer, PeerError, Peers
from lapgrad_bench.bench.results import Row
from lapgrad_bench.bench.runner import thread_count
from lapgrad_bench.bench.timing import Sampler, sampler, take_turns

_MEGABYTE = 1e6


@dataclass(frozen=True)
class _Guest:
    """A library in a process of its own that has the model."""

    peer: Peer
    case: ModelCase
    value: float

    def sample(self, calls: int) -> float:
        peer_cases.come_to_rest()
        return float(self.peer.ask(f"in {self.case}", do="sample", phase="step", calls=calls)["seconds"])

    def extra_bytes(self) -> int | None:
        found: int | None = self.peer.ask(f"in {self.case}", do="memory", phase="step")["bytes"]
        return found


def measure(
    case: ModelCase,
    threads: int,
    seconds: float,
    device: torch.device,
    peers: Peers,
    *,
    without: Sequence[str] = (),
    activity: Activity | None = None,
) -> tuple[list[Row], list[dict[str, Any]]]:
    """Rows, one per library, and the bars of the case.

    Args:
        case: What is timed.
        threads: Of every library.
        seconds: How long to go on with two libraries; more for more, and for large cases.
        device: Where.
        peers: Libraries in processes of their own. Those that fail are left out and told why.
        without: Libraries of this process, other than lapgrad, that are left out.
        activity: Told what is called next.

    Raises:
        DisagreementError: lapgrad and torch do not agree.
    """
    told = activity or Activity()
    with thread_count(threads):
        told.begin("", "preparation of the model")
        contest = case.make(device)
        thunks = {name: thunk for name, thunk in contest.thunks.items() if name not in without}
        values = {}
        for name, thunk in thunks.items():
            told.begin(name, "its first evaluation")
            values[name] = float(thunk()[0])
        _check(case, contest, values)
        # Memory first: in a heap with holes left by others a peak is larger than what is asked for.
        extra: dict[str, int | None] = dict.fromkeys(values)
        if measurable(device):
            for name, thunk in thunks.items():
                told.begin(name, "an evaluation, for its memory")
                extra[name] = peak_extra_bytes(thunk, device)
        told.begin_unlimited("preparation of peers")
        guests = list(_invited(case, contest, values["lapgrad"], threads, peers))
        while True:
            samplers: dict[str, Sampler] = {
                name: told.watch(sampler(thunk, device, warm=bool(guests)), name, "an evaluation")
                for name, thunk in thunks.items()
            }
            samplers |= {guest.peer.library: told.pause(guest.sample, "a peer's turn") for guest in guests}
            budget = seconds * case.weight * len(samplers) / 2.0
            try:
                timings = take_turns(list(samplers.values()), budget, least_rounds=3)
                told.begin_unlimited("memory of peers")
                extra |= {guest.peer.library: guest.extra_bytes() for guest in guests}
                break
            except PeerError as error:  # once more without it
                peers.drop(error.library, str(error))
                guests = [guest for guest in guests if guest.peer.library != error.library]
        for guest in guests:
            guest.peer.ask(f"after {case}", do="release")
    values |= {guest.peer.library: guest.value for guest in guests}
    rows = [
        {
            "model": case.model,
            "case": case.case,
            "dtype": case.dtype,
            "device": device.type,
            "threads": threads,
            "library": name,
            "median_s": timing.median,
            "low_s": timing.low,
            "high_s": timing.high,
            "samples": timing.samples,
            "extra_bytes": extra.get(name),
            "value": values[name],
        }
        for name, timing in zip(samplers, timings, strict=True)
    ]
    return rows, list(_bars(case, contest, rows)) if device.type in contest.held_on else []


def _check(case: ModelCase, contest: Contest, values: dict[str, float]) -> None:
    if "torch" not in values:
        return
    difference = abs(values["torch"] / values["lapgrad"] - 1.0)
    if not difference <= contest.different["torch"]:
        raise DisagreementError(f"{case}: the values of lapgrad and torch differ by {difference:.1e}")


def _invited(case: ModelCase, contest: Contest, value: float, threads: int, peers: Peers) -> Iterator[_Guest]:
    """Peers that have the model and agree on its value."""
    if contest.arguments is None:
        return
    with tempfile.TemporaryDirectory(prefix="lapgrad-peers-") as folder:
        file = Path(folder) / "case.npz"
        numpy.savez(file, **contest.arguments)
        for peer in peers.present(threads):
            try:
                answer = peer.ask(f"in {case}", do="model", model=case.model, file=str(file))
            except PeerError as error:
                peers.drop(error.library, str(error))
                continue
            if not answer["phases"]:
                peers.lacks(peer.library, str(case), answer["lacks"])
                continue
            difference = abs(answer["value"] / value - 1.0)
            if not difference <= contest.different.get(peer.library, 0.0):
                peers.lacks(peer.library, str(case), f"not timed: its value differs by {difference:.1e}")
                continue
            yield _Guest(peer, case, answer["value"])


def _bars(case: ModelCase, contest: Contest, rows: list[Row]) -> Iterator[dict[str, Any]]:
    """What is to be reached, of the libraries that took part."""
    own, *others = rows
    if contest.megabytes is not None and own["extra_bytes"] is not None:
        figure = own["extra_bytes"] / _MEGABYTE
        yield _bar(f"{case}: extra memory", "≤", contest.megabytes, figure, " MB")
    for row in others:
        name = row["library"]
        if name in contest.faster:
            ratio = row["median_s"] / own["median_s"]
            yield _bar(f"{case}: {name} / lapgrad, time", "≥", contest.faster[name], ratio, "×")
            if contest.smaller is not None and row["extra_bytes"] and own["extra_bytes"]:
                ratio = row["extra_bytes"] / own["extra_bytes"]
                yield _bar(f"{case}: {name} / lapgrad, memory", "≥", contest.smaller, ratio, "×")


def _bar(what: str, sense: str, wanted: float, figure: float, unit: str) -> dict[str, Any]:
    passed = figure >= wanted if sense == "≥" else figure <= wanted
    return {"what": what, "wanted": wanted, "sense": sense, "figure": figure, "unit": unit, "passed": passed}
