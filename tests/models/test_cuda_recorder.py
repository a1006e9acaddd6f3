"""The recorder of CUDA graphs with a torch.cuda that only records calls: what is done, and what is undone.

``tests/cuda/models/test_graphs_of_fits.py`` has the real one.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from lapgrad._torch import private as _torch_private
from lapgrad.models._training import cuda_graph as _cuda_graph
from lapgrad.models._training.cuda_graph import CannotCaptureError, CudaRecorder


class Notes:
    """A stand-in for torch.cuda that writes down the calls of a recorder."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.stream_of_thread = "default"
        self.fails_at_the_end = False

    class Stream:
        def __init__(self, notes: Notes, name: str) -> None:
            self.notes, self.name = notes, name

        def wait_stream(self, other: Notes.Stream) -> None:
            self.notes.made.append(f"{self.name} waits for {other.name}")

    class Graph:
        def __init__(self, notes: Notes) -> None:
            self.notes = notes

        def replay(self) -> None:
            self.notes.made.append("replay")

        def reset(self) -> None:
            self.notes.made.append("reset")

    @contextlib.contextmanager
    def entered(self, stream: Notes.Stream) -> Iterator[None]:
        before, self.stream_of_thread = self.stream_of_thread, stream.name
        yield
        self.stream_of_thread = before

    @contextlib.contextmanager
    def graph(self, graph: Notes.Graph, pool: int, stream: Notes.Stream, **_: str) -> Iterator[None]:
        """Like torch.cuda.graph, which does not restore the stream if ending the recording fails."""
        self.made.append(f"record on {stream.name} with pool {pool}")
        before, self.stream_of_thread = self.stream_of_thread, stream.name
        try:
            yield
        finally:
            if self.fails_at_the_end:
                raise RuntimeError("operation failed due to a previous error\nduring capture")
            self.stream_of_thread = before

    def set_stream(self, stream: Notes.Stream) -> None:
        self.stream_of_thread = stream.name


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> Notes:
    notes, pools = Notes(), iter(range(1, 100))
    fake = SimpleNamespace(
        Stream=lambda device: Notes.Stream(notes, "side"),
        CUDAGraph=lambda: Notes.Graph(notes),
        graph_pool_handle=lambda: next(pools),
        graph=notes.graph,
        stream=notes.entered,
        device=lambda device: contextlib.nullcontext(),
        current_stream=lambda device=None: Notes.Stream(notes, "default"),
        current_device=lambda: 0,
        get_rng_state=lambda: torch.tensor([7]),
        set_stream=notes.set_stream,
        synchronize=lambda device: notes.made.append("synchronize"),
    )
    monkeypatch.setattr(_cuda_graph, "_streams", threading.local())
    monkeypatch.setattr(_cuda_graph, "torch", SimpleNamespace(cuda=fake, device=torch.device))
    monkeypatch.setattr(
        _torch_private,
        "forget_capture",
        lambda device, pool, drawn: notes.made.append(f"forget {device} {pool} {drawn.item()}"),
    )
    return notes


def test_rehearsals_are_made_aside_and_graphs_given_back(notes: Notes) -> None:
    recorder = CudaRecorder(torch.device("cuda", 0))
    calls: list[tuple[str, bool]] = []
    step = _cuda_graph.ReplayableFunction(
        lambda: calls.append((notes.stream_of_thread, recorder.recording)), recorder
    )
    for _ in range(6):
        step()
    assert calls == [("side", False)] * 3 + [("side", True)]
    assert notes.stream_of_thread == "default"
    recorder.close()
    turns = ["side waits for default", "default waits for side"] * 3
    recorded = ["record on side with pool 1", *["replay"] * 3]
    assert notes.made == [*turns, *recorded, "synchronize", "reset"]


@pytest.mark.parametrize("fails_at_the_end", [False, True])
def test_a_recording_that_fails_is_undone(notes: Notes, fails_at_the_end: bool) -> None:
    recorder = CudaRecorder(torch.device("cuda", 0))
    notes.fails_at_the_end = fails_at_the_end

    def fail() -> None:
        raise ValueError("operation not permitted\nwhen stream is capturing")

    with pytest.raises(
        CannotCaptureError, match=r"test_cuda_recorder.py, line \d+: ValueError: operation not permitted$"
    ):
        recorder.record(fail)
    assert notes.made[-1] == "forget 0 1 7"
    assert notes.stream_of_thread == "default"
    assert not recorder.recording
    recorder.close()
    assert "reset" not in notes.made


@pytest.mark.parametrize("fails_at_the_end", [False, True])
def test_an_interrupt_is_no_reason_not_to_record(notes: Notes, fails_at_the_end: bool) -> None:
    recorder = CudaRecorder(torch.device("cuda", 0))
    notes.fails_at_the_end = fails_at_the_end

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        recorder.record(interrupt)
    assert notes.made[-1] == "forget 0 1 7"
    assert notes.stream_of_thread == "default"
    assert not recorder.recording
