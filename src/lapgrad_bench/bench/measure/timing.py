"""Times several functions in turns, so that changes in the speed of the machine affect all of them."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

CPU = torch.device("cpu")

Thunk = Callable[[], Any]
Sampler = Callable[[int], float]
"""A function that makes a number of calls and returns the seconds per call."""

_SHORTEST_SAMPLE = 2e-3
"""Least seconds of a sample. A faster function is called several times per sample. Then the cost of the clock
does not matter, and the caches that the other function has emptied are filled once per sample."""

_FILLER_BYTES = 2**28
"""Bytes that a GPU writes to be kept busy: they take a tenth of a millisecond."""

_MOST_ROUNDS = 2000
"""Rounds after which timing stops even if its time is not over."""

_WORK_SAMPLES, _WORK_SECONDS = 9, 0.5
"""Samples of the work of a GPU; after the seconds three are enough."""

_LEAST_AHEAD, _MOST_AHEAD = 1e-3, 2e-2
"""Seconds that a GPU is kept busy while a call is launched; threads of autograd may take long to wake up.
If a launch takes longer, the GPU waits for it."""


@dataclass(frozen=True)
class Timing:
    """Seconds per call over all samples of one function."""

    median: float
    low: float
    high: float
    samples: int

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Timing:
        """Return median and quartiles of the samples.

        Example:
            >>> Timing.of([3.0, 1.0, 2.0])
            Timing(median=2.0, low=1.0, high=3.0, samples=3)
        """
        ordered = sorted(seconds)
        if len(ordered) < 4:
            low, high = ordered[0], ordered[-1]
        else:
            low, _, high = statistics.quantiles(ordered, n=4)
        return cls(statistics.median(ordered), low, high, len(ordered))


def time_in_turns(
    functions: Sequence[Thunk],
    seconds: float,
    *,
    least_rounds: int = 5,
    device: torch.device = CPU,
) -> list[Timing]:
    """Time functions in turns: one sample of each per round, every second round in reverse order.

    Args:
        functions: what to time, without arguments.
        seconds: how long all functions are timed together.
        least_rounds: rounds that are run even when `seconds` is over.
        device: where the functions compute. On a GPU events record when it begins and ends.

    Returns:
        One Timing per function.
    """
    samplers = [make_sampler(function, device) for function in functions]
    return take_turns(samplers, seconds, least_rounds=least_rounds)


def take_turns(
    samplers: Sequence[Sampler],
    seconds: float,
    *,
    least_rounds: int = 5,
    rare: int = 0,
) -> list[Timing]:
    """Time anything that takes samples in turns, such as libraries in other processes.

    Args:
        samplers: what to time: each takes a number of calls and returns seconds per call.
        seconds: how long all samplers are timed together.
        least_rounds: rounds that are run even when `seconds` is over.
        rare: This many samplers at the end are references. Their samples are single calls, taken in the first
            `least_rounds` rounds, and later only while they have used less than a tenth of the time.

    Returns:
        One Timing per sampler.
    """
    order, first_rare = list(range(len(samplers))), len(samplers) - rare
    calls = [_choose_calls_per_sample(sampler) for sampler in samplers[:first_rare]] + [1] * rare
    for sampler in samplers[first_rare:]:
        sampler(1)  # The first call is not counted.
    samples: list[list[float]] = [[] for _ in samplers]
    spent = [0.0] * len(samplers)
    with _pause_garbage_collection():
        start = time.perf_counter()
        for turn in range(_MOST_ROUNDS):
            now = time.perf_counter()
            if turn >= least_rounds and now - start >= seconds:
                break
            for i in order:
                if i >= first_rare and turn >= least_rounds and spent[i] > 0.1 * (now - start):
                    continue
                samples[i].append(samplers[i](calls[i]))
                spent[i] += samples[i][-1] * calls[i]
            order.reverse()
    return [Timing.of(one) for one in samples]


def make_sampler(function: Thunk, device: torch.device = CPU, *, warm: bool = False) -> Sampler:
    """Return a sampler of a function in this process.

    Args:
        function: what to time, without arguments.
        device: where it computes.
        warm: call it once, uncounted, before each sample of several calls. Needed in turns with other
            processes, during which the threads of this one fall asleep.
    """
    sample = _take_sample_on_gpu if device.type == "cuda" else _take_sample
    if not warm:
        return lambda calls: sample(function, calls)

    def sample_after_one_call(calls: int) -> float:
        if calls > 1:
            function()
        return sample(function, calls)

    return sample_after_one_call


def _choose_calls_per_sample(sample: Sampler) -> int:
    """Warm a sampler up; return how many calls make a sample that is long enough to be measured."""
    sample(1)
    once = sample(1)
    if once < _SHORTEST_SAMPLE:
        once = min(sample(1) for _ in range(3))
    return max(1, round(_SHORTEST_SAMPLE / max(once, 1e-7)))


def _take_sample(function: Thunk, calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        function()
    return (time.perf_counter() - start) / calls


def _take_sample_on_gpu(function: Thunk, calls: int) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(calls):
        function()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3 / calls


def measure_device_work(function: Thunk) -> Timing:
    """Return the seconds that a GPU works on a call, without the time it waits for the host.

    The call is launched while the GPU is busy with other work, as in the middle of a program that keeps it
    busy (NVBench measures in this way). The GPU's caches hold no data of the call. If the function reads a
    value back from the GPU, the wait for it counts.

    Args:
        function: what to time, without arguments; called before.
    """
    filler = torch.empty(_FILLER_BYTES, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    began = time.perf_counter()
    function()
    launched = time.perf_counter() - began
    torch.cuda.synchronize()
    ahead = min(max(_LEAST_AHEAD, 4.0 * launched), _MOST_AHEAD)
    fills = math.ceil(ahead / max(_take_sample_on_gpu(filler.zero_, 8), 1e-6))
    found: list[float] = []
    with _pause_garbage_collection():
        while len(found) < 3 or (len(found) < _WORK_SAMPLES and sum(found) < _WORK_SECONDS):
            for _ in range(fills):
                filler.zero_()
            found.append(_take_sample_on_gpu(function, 1))
    return Timing.of(found)


@contextmanager
def freeze_existing_objects() -> Iterator[None]:
    """Exclude existing objects (torch has 10⁵ of them) from garbage collection while the block runs."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def _pause_garbage_collection() -> Iterator[None]:
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
