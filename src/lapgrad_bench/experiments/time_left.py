"""How far an experiment is, and how long it will take: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import importlib.util
import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

_PAUSE = 15.0
"""Seconds between two lines where there is no terminal."""


class Shown(Protocol):
    """Takes what there is to say."""

    def __call__(self, done: float, text: str, *, line: bool = False) -> None:
        """Shows progress.

        Args:
            done: How much of the work is done, 0 to 1.
            text: What is under way.
            line: Worth a line of its own, that stays.
        """


def duration(seconds: float) -> str:
    """In the units that people use.

    Example:
        >>> duration(7.4), duration(75), duration(4000), duration(math.inf)
        ('7 s', '1 min 15 s', '1 h 6 min', '?')
    """
    if not math.isfinite(seconds):
        return "?"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


@contextmanager
def shown(already: float) -> Iterator[Shown]:
    """Shows progress on standard error while the block runs.

    Args:
        already: How much of the work was done by an earlier run, 0 to 1: the rate is that of this one.
    """
    terminal = sys.stderr.isatty() and importlib.util.find_spec("rich") is not None
    with (_on_terminal if terminal else _in_lines)(already) as show:
        yield show


@contextmanager
def _in_lines(already: float) -> Iterator[Shown]:
    began, last = time.monotonic(), -math.inf

    def show(done: float, text: str, *, line: bool = False) -> None:
        nonlocal last
        now = time.monotonic()
        if line or now > last + _PAUSE:
            last = now
            left = duration(_left(already, done, now - began))
            print(f"{100 * done:5.1f} %  {left} left  {text}", file=sys.stderr, flush=True)

    yield show


def _left(already: float, done: float, seconds: float) -> float:
    made = done - already
    return seconds * (1.0 - done) / made if made > 0.0 else math.inf


@contextmanager
def _on_terminal(already: float) -> Iterator[Shown]:
    from rich import progress
    from rich.console import Console

    columns = (
        progress.BarColumn(bar_width=20),
        progress.TaskProgressColumn(),
        progress.TextColumn("{task.fields[left]} left"),
        progress.TextColumn("{task.description}"),
    )
    began = time.monotonic()
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=1.0, left="?")

        def show(done: float, text: str, *, line: bool = False) -> None:
            if line:
                bar.console.print(text, highlight=False)
            left = duration(_left(already, done, time.monotonic() - began))
            bar.update(task, completed=done, description=text, left=left)

        yield show
