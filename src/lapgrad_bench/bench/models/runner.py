"""Times the criteria of models, with all libraries in turns, and measures their memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch

from lapgrad_bench.bench.measure.activity import Activity
from lapgrad_bench.bench.measure.memory import can_measure_memory, measure_peak_bytes
from lapgrad_bench.bench.measure.timing import Sampler, Thunk, Timing, make_sampler, take_turns
from lapgrad_bench.bench.models.cases import ModelCase, PreparedCase
from lapgrad_bench.bench.ops import peer_cases
from lapgrad_bench.bench.ops.agreement import DisagreementError
from lapgrad_bench.bench.ops.runner import use_threads
from lapgrad_bench.bench.peers.client import Peer, PeerError, Peers
from lapgrad_bench.common.results import Row

_MEGABYTE = 1e6


@dataclass(frozen=True)
class _ReadyPeer:
    """A library in a process of its own that has prepared the model, and the value that it computed."""

    peer: Peer
    case: ModelCase
    value: float

    def sample(self, calls: int) -> float:
        """Return the seconds of this many evaluations."""
        peer_cases.wait_for_idle_threads()
        return float(self.peer.ask(f"in {self.case}", do="sample", phase="step", calls=calls)["seconds"])

    def measure_memory(self) -> int | None:
        """Return the bytes at the peak of an evaluation; None if the library cannot tell."""
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
    """Time a case; return rows, one per library, and the figures that have to be reached.

    Args:
        case: What is timed.
        threads: Threads of every library.
        seconds: How long two libraries are timed; more libraries and large cases take longer.
        device: Where the libraries of this process compute.
        peers: Libraries in processes of their own. One that fails is dropped, with the reason.
        without: Libraries of this process, other than lapgrad, that are left out.
        activity: The record of the call that is being made.

    Raises:
        DisagreementError: lapgrad and torch do not agree.
    """
    record = activity or Activity()
    with use_threads(threads):
        record.begin("", "preparation of the model")
        prepared = case.make(device)
        thunks = {name: thunk for name, thunk in prepared.thunks.items() if name not in without}
        values = {}
        for name, thunk in thunks.items():
            record.begin(name, "its first evaluation")
            values[name] = float(thunk()[0])
        _check_agreement(case, prepared, values)
        # Memory is measured first: later the heap has holes, and a peak is larger than what was allocated.
        extra: dict[str, int | None] = dict.fromkeys(values)
        if can_measure_memory(device):
            for name, thunk in thunks.items():
                record.begin(name, "an evaluation, for its memory")
                extra[name] = measure_peak_bytes(thunk, device)
        record.begin_unlimited("preparation of peers")
        ready_peers = list(_find_ready_peers(case, prepared, values["lapgrad"], threads, peers))
        while True:
            try:
                timings = _time_in_turns(case, thunks, ready_peers, seconds, device, record)
                record.begin_unlimited("memory of peers")
                extra |= {ready.peer.library: ready.measure_memory() for ready in ready_peers}
                break
            except PeerError as error:  # Everything is timed again without this peer.
                peers.drop(error.library, str(error))
                ready_peers = [ready for ready in ready_peers if ready.peer.library != error.library]
        for ready in ready_peers:
            ready.peer.ask(f"after {case}", do="release")
    values |= {ready.peer.library: ready.value for ready in ready_peers}
    same: dict[str, Any] = {"model": case.model, "case": case.case, "dtype": case.dtype}
    same |= {"device": device.type, "threads": threads}
    rows = [
        {
            **same,
            "library": name,
            "median_s": timing.median,
            "low_s": timing.low,
            "high_s": timing.high,
            "samples": timing.samples,
            "extra_bytes": extra.get(name),
            "value": values[name],
        }
        for name, timing in timings.items()
    ]
    if device.type not in prepared.devices_with_bars:
        return rows, []
    bars = list(_compare_with_bars(case, prepared, rows))
    for figure in prepared.figures:
        record.begin("lapgrad", figure.what)
        with use_threads(threads):
            bars.append(
                _make_bar(f"{case}: {figure.what}", "≤", figure.most, figure.measure(seconds), figure.unit)
            )
    return rows, bars


def _time_in_turns(
    case: ModelCase,
    thunks: Mapping[str, Thunk],
    ready_peers: Sequence[_ReadyPeer],
    seconds: float,
    device: torch.device,
    record: Activity,
) -> dict[str, Timing]:
    """Return the times of an evaluation by library; raise a PeerError if a peer fails."""
    samplers: dict[str, Sampler] = {
        name: record.watch(make_sampler(thunk, device, warm=bool(ready_peers)), name, "an evaluation")
        for name, thunk in thunks.items()
    }
    samplers |= {ready.peer.library: record.pause(ready.sample, "a peer's turn") for ready in ready_peers}
    budget = seconds * case.weight * len(samplers) / 2.0
    return dict(zip(samplers, take_turns(list(samplers.values()), budget, least_rounds=3), strict=True))


def _check_agreement(case: ModelCase, prepared: PreparedCase, values: dict[str, float]) -> None:
    if "torch" not in values:
        return
    difference = abs(values["torch"] / values["lapgrad"] - 1.0)
    if not difference <= prepared.tolerances["torch"]:
        raise DisagreementError(f"{case}: the values of lapgrad and torch differ by {difference:.1e}")


def _find_ready_peers(
    case: ModelCase, prepared: PreparedCase, value: float, threads: int, peers: Peers
) -> Iterator[_ReadyPeer]:
    """Yield the peers that have the model and agree on its value."""
    if prepared.arguments is None:
        return
    with tempfile.TemporaryDirectory(prefix="lapgrad-peers-") as folder:
        file = Path(folder) / "case.npz"
        numpy.savez(file, **prepared.arguments)
        for peer in peers.list_present(threads):
            try:
                answer = peer.ask(f"in {case}", do="model", model=case.model, file=str(file))
            except PeerError as error:
                peers.drop(error.library, str(error))
                continue
            if not answer["phases"]:
                peers.record_missing_case(peer.library, str(case), answer["lacks"])
                continue
            difference = abs(answer["value"] / value - 1.0)
            if not difference <= prepared.tolerances.get(peer.library, 0.0):
                peers.record_missing_case(
                    peer.library, str(case), f"not timed: its value differs by {difference:.1e}"
                )
                continue
            yield _ReadyPeer(peer, case, answer["value"])


def _compare_with_bars(case: ModelCase, prepared: PreparedCase, rows: list[Row]) -> Iterator[dict[str, Any]]:
    """Yield the times and memory that have to be reached, for libraries that took part."""
    own, *others = rows
    if prepared.most_megabytes is not None and own["extra_bytes"] is not None:
        figure = own["extra_bytes"] / _MEGABYTE
        yield _make_bar(f"{case}: extra memory", "≤", prepared.most_megabytes, figure, " MB")
    for row in others:
        name = row["library"]
        if name in prepared.wanted_speedups:
            ratio = row["median_s"] / own["median_s"]
            yield _make_bar(
                f"{case}: {name} / lapgrad, time", "≥", prepared.wanted_speedups[name], ratio, "×"
            )
            if prepared.wanted_memory_ratio is not None and row["extra_bytes"] and own["extra_bytes"]:
                ratio = row["extra_bytes"] / own["extra_bytes"]
                yield _make_bar(
                    f"{case}: {name} / lapgrad, memory", "≥", prepared.wanted_memory_ratio, ratio, "×"
                )


def _make_bar(what: str, sense: str, wanted: float, figure: float, unit: str) -> dict[str, Any]:
    passed = figure >= wanted if sense == "≥" else figure <= wanted
    return {"what": what, "wanted": wanted, "sense": sense, "figure": figure, "unit": unit, "passed": passed}
