"""Runs a case in the processes of peers: sends inputs, compares results with torch's, takes samples."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lapgrad_bench.bench.ops.agreement import DisagreementError, Values, compare
from lapgrad_bench.bench.ops.cases import Case
from lapgrad_bench.bench.peers.client import Peer, PeerError, Peers


@dataclass(frozen=True)
class PeerCase:
    """A peer that has prepared a case, and the phases that can be timed."""

    peer: Peer
    case: Case
    phases: tuple[str, ...]

    def sample(self, phase: str, calls: int) -> float:
        """Return seconds per call, measured in the peer's process while this one is idle."""
        wait_for_idle_threads()
        answer = self.peer.ask(f"in {self.case} {phase}", do="sample", phase=phase, calls=calls)
        return float(answer["seconds"])

    def extra_bytes(self, phase: str) -> int | None:
        """Return the bytes at the peak of a call."""
        found: int | None = self.peer.ask(f"in {self.case} {phase}", do="memory", phase=phase)["bytes"]
        return found

    def release(self) -> None:
        """Make the peer free the case."""
        self.peer.ask(f"after {self.case}", do="release")


def prepare(
    case: Case,
    phases: Sequence[str],
    peers: Peers,
    threads: int,
    inputs: Sequence[Tensor],
    weights: Sequence[Tensor],
    reference: Values,
    whose: str = "torch",
) -> list[PeerCase]:
    """Send the case to all peers; return those that agree with a reference.

    Args:
        case: what is computed.
        phases: the phases that are timed.
        peers: the peers; reasons why some are left out are recorded there.
        threads: threads of every peer.
        inputs: the inputs of the operator.
        weights: weights of the results in the loss; where signs are free, factors of the results.
        reference: values of torch, or of lapgrad where torch is left out.
        whose: the library of the reference.
    """
    present = peers.list_present(threads)
    if not present:
        return []
    found = []
    with tempfile.TemporaryDirectory(prefix="lapgrad-peers-") as folder:
        file = Path(folder) / "case.npz"
        arrays = {f"input{i}": x.cpu().numpy() for i, x in enumerate(inputs)}
        arrays |= {f"weight{i}": x.cpu().numpy() for i, x in enumerate(weights)}
        np.savez(file, **arrays)  # type: ignore[arg-type]  # numpy takes the names for its own keywords
        for peer in present:
            try:
                prepared = _prepare_one(
                    case, phases, peer, peers, file, inputs, len(weights), reference, whose
                )
            except PeerError as error:
                peers.record_failure(error.library, str(case), str(error))
                continue
            if prepared is not None:
                found.append(prepared)
    return found


def _prepare_one(
    case: Case,
    phases: Sequence[str],
    peer: Peer,
    peers: Peers,
    file: Path,
    inputs: Sequence[Tensor],
    weights: int,
    reference: Values,
    whose: str,
) -> PeerCase | None:
    answer = peer.ask(
        f"in {case}, before it was timed",
        do="prepare",
        operator=case.operator.name,
        file=str(file),
        inputs=len(inputs),
        weights=weights,
        signs=case.operator.signs,
        phases=list(phases),
    )
    if answer["lacks"]:
        peers.record_missing_case(peer.library, str(case), answer["lacks"])
    if not answer["phases"]:
        return None
    with np.load(f"{file}.out.npz") as stored:
        results, gradients = (
            [torch.from_numpy(stored[name]) for name in sorted(stored.files) if name.startswith(kind)]
            for kind in ("result", "gradient")
        )
    # Some libraries put all of the gradient of a symmetric matrix into one triangle.
    symmetric = [i for i, x in enumerate(inputs) if _is_symmetric(x)]
    try:
        seen, who = Values(results, gradients), f" of {peer.library}"
        compare(case, seen, reference, symmetric=symmetric, who=who, whose=whose)
    except DisagreementError as error:
        peers.record_missing_case(peer.library, str(case), f"not timed: {str(error).partition(': ')[2]}")
        return None
    return PeerCase(peer, case, tuple(answer["phases"]))


def _is_symmetric(x: Tensor) -> bool:
    return x.ndim > 1 and x.shape[-1] == x.shape[-2] and torch.allclose(x, x.mT)


def wait_for_idle_threads() -> None:
    """Wait until the threads of this process are asleep; they spin for a while after their work."""
    for _ in range(200):
        used, start = time.process_time(), time.perf_counter()
        time.sleep(1e-3)
        if time.process_time() - used < 0.2 * (time.perf_counter() - start):
            return
