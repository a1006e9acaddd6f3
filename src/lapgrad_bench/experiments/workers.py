"""Learns folds one after the other in this process, or several at a time in processes of their own.

On a CPU the processes share the threads; on a GPU several small models fit beside each other. Folds report by
events, and their figures do not depend on what runs at the same time.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lapgrad import _exceptions
from lapgrad_bench import datasets
from lapgrad_bench.experiments import folds
from lapgrad_bench.experiments.folds import Fold, LearningOptions
from lapgrad_bench.experiments.interruption import catch_stop_signals

_WAIT = 0.5
"""Seconds between two checks whether the processes still run."""
_PAUSE = 0.5
"""Seconds between two reports of a fold."""


@dataclass(frozen=True)
class Progress:
    """A fold has made this many steps; 0: it starts, and has no loss yet."""

    fold: Fold
    steps: int
    loss: float | None


@dataclass(frozen=True)
class Finished:
    """A fold is learned and tested: a row of the results."""

    fold: Fold
    row: dict[str, Any]


@dataclass(frozen=True)
class Failed:
    """A fold cannot be learned; the others go on."""

    fold: Fold
    message: str


Event = Progress | Finished | Failed


@dataclass(frozen=True)
class Work:
    """The folds to be learned.

    Attributes:
        folds: In the order in which they are started.
        options: How each is learned.
        data_dir: The folder of the data files.
        device: "cpu" or "cuda".
        checkpoints: The folder of checkpoints.
        threads: Threads of each process.
    """

    folds: tuple[Fold, ...]
    options: LearningOptions
    data_dir: Path | None
    device: str
    checkpoints: Path
    threads: int


def run_folds(work: Work, workers: int, handle: Callable[[Event], None], stop: Callable[[], bool]) -> None:
    """Learn all folds, ``workers`` at a time; return early if ``stop`` returns True.

    Args:
        work: The folds.
        workers: Number of processes; 1: this process.
        handle: Called in this process with each event.
        stop: Called often. When it returns True, folds that are being learned write their checkpoints.
    """
    if workers > 1:
        _learn_in_processes(work, workers, handle, stop)
    else:
        _learn_in_this_process(work, range(len(work.folds)), handle, stop)


def _learn_in_this_process(
    work: Work, order: Iterable[int], handle: Callable[[Event], None], stop: Callable[[], bool]
) -> None:
    known: dict[str, tuple[Tensor, Tensor]] = {}
    before = torch.get_num_threads()
    torch.set_num_threads(work.threads)
    try:
        for index in order:
            if stop():
                return
            fold = work.folds[index]
            if fold.dataset not in known:
                known[fold.dataset] = _load_data(fold, work)
            _learn_one(work, fold, known[fold.dataset], handle, stop)
    except folds.Interrupted:
        return
    finally:
        torch.set_num_threads(before)


def _load_data(fold: Fold, work: Work) -> tuple[Tensor, Tensor]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # The process that started the work has warned.
        return datasets.load(fold.dataset, work.data_dir)


def _learn_one(
    work: Work,
    fold: Fold,
    data: tuple[Tensor, Tensor],
    handle: Callable[[Event], None],
    stop: Callable[[], bool],
) -> None:
    told = time.monotonic()

    def report(steps: int, loss: float) -> None:
        nonlocal told
        if time.monotonic() > told + _PAUSE:
            handle(Progress(fold, steps, loss))
            told = time.monotonic()

    handle(Progress(fold, 0, None))
    try:
        row = folds.learn_fold(fold, work.options, data, work.device, work.checkpoints, report, stop)
    except (_exceptions.LapgradError, _exceptions.TORCH_LINALG_ERROR, torch.OutOfMemoryError) as error:
        handle(Failed(fold, f"{type(error).__name__}: {error}"))
    else:
        handle(Finished(fold, row))


def _learn_in_processes(
    work: Work, workers: int, handle: Callable[[Event], None], stop: Callable[[], bool]
) -> None:
    # A process that has used threads or a GPU must not be forked.
    context = multiprocessing.get_context("spawn")
    events, following, halt = context.Queue(), context.Value("l", 0), context.Event()
    processes = [
        context.Process(target=_run_worker, args=(work, following, events, halt, os.getpid()), daemon=True)
        for _ in range(min(workers, len(work.folds)))
    ]
    for process in processes:
        process.start()
    under_way: dict[Fold, int] = {}
    ended: set[int] = set()
    try:
        while len(ended) < len(processes):
            if stop():
                halt.set()
            try:
                pid, event = events.get(timeout=_WAIT)
            except queue.Empty:
                for process in processes:
                    if process.exitcode is not None and process.pid not in ended:
                        ended.add(process.pid or 0)
                        _report_lost_process(process, under_way, handle)
                continue
            if event is None:
                ended.add(pid)
                continue
            under_way[event.fold] = pid
            if not isinstance(event, Progress):
                del under_way[event.fold]
            handle(event)
    finally:
        halt.set()
        for process in processes:
            process.join(timeout=60)
            if process.is_alive():
                process.terminate()


def _report_lost_process(process: Any, under_way: dict[Fold, int], handle: Callable[[Event], None]) -> None:
    """Report the fold of a process that has ended without an event, perhaps for lack of memory, as failed."""
    for fold in [fold for fold, pid in under_way.items() if pid == process.pid]:
        del under_way[fold]
        handle(Failed(fold, f"its process ended with exit code {process.exitcode}"))


def _run_worker(work: Work, following: Any, events: Any, halt: Any, parent: int) -> None:
    """Learn the next fold that no other process has taken, until there is none; run in a child process."""
    with catch_stop_signals(acknowledge=False) as request:
        # A parent that was killed cannot stop its children: they stop themselves.
        _learn_in_this_process(
            work,
            _take_numbers(following, len(work.folds)),
            lambda event: events.put((os.getpid(), event)),
            lambda: bool(request) or halt.is_set() or os.getppid() != parent,
        )
        events.put((os.getpid(), None))


def _take_numbers(following: Any, count: int) -> Iterator[int]:
    """Yield numbers below ``count`` that no other process has taken."""
    while True:
        with following.get_lock():
            index = following.value
            following.value += 1
        if index >= count:
            return
        yield index
