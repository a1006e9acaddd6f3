"""The progress of a long run, with the time it still takes: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import importlib.util
import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

_PAUSE = 15.0
"""Seconds between two plain lines."""
_LEAST_PART, _LEAST_SECONDS = 0.02, 3.0
"""The time left is told when this part of the work is done, or this many seconds have passed."""


class ShowProgress(Protocol):
    """A function that shows how far a run is."""

    def __call__(self, done: float, text: str, *, line: bool = False) -> None:
        """Show progress.

        Args:
            done: The part of the work that is done, 0 to 1.
            text: What is being done.
            line: Whether the text is printed on a line of its own, which stays on the terminal.
        """


def format_duration(seconds: float) -> str:
    """Return seconds as text in seconds, minutes or hours; "?" if they are not finite.

    Example:
        >>> format_duration(7.4), format_duration(75), format_duration(4000), format_duration(math.inf)
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
def show_progress(already: float, *, quiet_off_terminal: bool = False) -> Iterator[ShowProgress]:
    """Show progress on standard error while the block runs; yields the function to call.

    Args:
        already: The part of the work that an earlier run has done, 0 to 1. It does not count for the estimate
            of the time left.
        quiet_off_terminal: Print nothing where standard error is no terminal.

    Example:
        >>> with show_progress(0.0, quiet_off_terminal=True) as show:
        ...     show(0.5, "potrf 128")
    """
    terminal = sys.stderr.isatty()
    if terminal and importlib.util.find_spec("rich") is not None:
        with _draw_bar(already) as show:
            yield show
    elif terminal or not quiet_off_terminal:
        yield _make_line_printer(already)
    else:
        yield lambda done, text, *, line=False: None


def _make_line_printer(already: float) -> ShowProgress:
    estimate, last = _Estimate(already), -math.inf

    def show(done: float, text: str, *, line: bool = False) -> None:
        nonlocal last
        now = time.monotonic()
        left = estimate.describe(done)
        if line or now > last + _PAUSE:
            last = now
            print(f"{100 * done:5.1f} %  {left}  {text}", file=sys.stderr, flush=True)

    return show


class _Estimate:
    """The time that is left, by the speed since the first step.

    The first step also starts threads, compiles and reads data: it says little about the others.
    """

    def __init__(self, already: float) -> None:
        self._already, self._since, self._began = already, already, time.monotonic()

    def describe(self, done: float) -> str:
        """Return the time that is left as text; to be called after each step."""
        if self._since == self._already < done:
            self._since, self._began = done, time.monotonic()
        return describe_time_left(self._since, done, time.monotonic() - self._began)


def describe_time_left(already: float, done: float, seconds: float) -> str:
    """Return the time that is left as text, or that it is not known yet.

    Args:
        already: The part of the work that an earlier run has done.
        done: The part that is done now.
        seconds: The time that the work between these took.

    Example:
        >>> describe_time_left(0.0, 0.0, 3.0), describe_time_left(0.0, 0.25, 30.0)
        ('estimating', '1 min 30 s left')
        >>> describe_time_left(0.0, 0.999, 30.0), describe_time_left(0.0, 1.0, 30.0)
        ('under 1 s left', 'done')
        >>> describe_time_left(0.0, 0.001, 1.0)
        'estimating'
    """
    if done >= 1.0:
        return "done"
    made = done - already
    if made <= 0.0 or (made < _LEAST_PART and seconds < _LEAST_SECONDS):
        return "estimating"
    left = seconds * (1.0 - done) / made
    return "under 1 s left" if left < 0.5 else f"{format_duration(left)} left"


@contextmanager
def _draw_bar(already: float) -> Iterator[ShowProgress]:
    from rich import progress
    from rich.console import Console

    columns = (
        progress.BarColumn(bar_width=20),
        progress.TaskProgressColumn(),
        progress.TextColumn("{task.fields[left]}"),
        progress.TextColumn("{task.description}"),
    )
    estimate = _Estimate(already)
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=1.0, left="estimating")

        def show(done: float, text: str, *, line: bool = False) -> None:
            if line:
                bar.console.print(text, highlight=False)
            bar.update(task, completed=done, description=text, left=estimate.describe(done))

        yield show
