"""CUDA graphs, emulated on the CPU: every operation of a call on a tape, to be repeated on the same tensors.

A replay repeats each operation with the present numbers in its operands, and writes the results to the same
memory. Python numbers keep the values of the recording, as in a graph.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lapgrad.models._training.cuda_graph import CannotCaptureError, Function


class Tape(TorchDispatchMode):
    """Records all operations of a call in order, and executes them again."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, Any, Any, list[Any]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        self.operations.append((func, args, kwargs or {}, tree_leaves(found)))
        return found

    def replay(self) -> None:
        with torch.no_grad():
            for func, args, kwargs, before in self.operations:
                now = tree_leaves(func(*args, **kwargs))
                for place, value in zip(before, now, strict=True):
                    if isinstance(place, Tensor) and place.data_ptr() != value.data_ptr():
                        place.copy_(value)


class TapeRecorder:
    """A recorder whose recordings are tapes.

    Attributes:
        rehearsals, recordings, replays: How many there were.
        closed: How many times ``close`` was called.
        failure: Why ``record`` fails; None: it does not.
    """

    def __init__(self, failure: str | None = None) -> None:
        self.rehearsals = self.recordings = self.replays = self.closed = 0
        self.failure, self.recording = failure, False

    @contextlib.contextmanager
    def enter_side_stream(self) -> Iterator[None]:
        self.rehearsals += 1
        yield

    def record(self, function: Function) -> Function:
        if self.failure is not None:
            raise CannotCaptureError(self.failure)
        self.recordings += 1
        self.recording = True
        with Tape() as tape:
            function()  # unlike a graph, a tape computes while it records: the first replay is done
        self.recording = False
        made = [True]

        def replay() -> None:
            self.replays += 1
            if made:
                made.clear()
            else:
                tape.replay()

        return replay

    def close(self) -> None:
        self.closed += 1
