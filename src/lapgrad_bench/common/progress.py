"""How far a long run is: a bar where rich is installed, lines otherwise; nothing off a terminal."""

from __future__ import annotations

import importlib.util
import sys
from types import TracebackType
from typing import Any


class Progress:
    """Says on stderr, where that is a terminal, what is being measured.

    Example:
        >>> with Progress(2) as progress:
        ...     for what in ("potrf 64", "potrf 128"):
        ...         progress.now(what)
    """

    def __init__(self, total: int, done: int = 0) -> None:
        self._total, self._done, self._begun = total, done, False
        self._shown = sys.stderr.isatty()
        self._rich: Any = None
        self._task: Any = None

    def __enter__(self) -> Progress:
        if self._shown and importlib.util.find_spec("rich") is not None:
            from rich import progress as rich
            from rich.console import Console

            columns = (
                rich.TextColumn("{task.completed:.0f}/{task.total:.0f}"),
                rich.BarColumn(),
                rich.TimeElapsedColumn(),
                rich.TextColumn("to go:"),
                rich.TimeRemainingColumn(),
                rich.TextColumn("{task.description}"),
            )
            self._rich = rich.Progress(*columns, console=Console(stderr=True), transient=True)
            self._rich.start()
            self._task = self._rich.add_task("", total=self._total, completed=self._done)
        return self

    def now(self, what: str) -> None:
        """The next item begins, and the one before it, if any, is done."""
        if self._begun:
            self._done += 1
        self._begun = True
        if self._rich is not None:
            self._rich.update(self._task, completed=self._done, description=what)
        elif self._shown:
            print(f"{self._done + 1}/{self._total} {what}", file=sys.stderr, flush=True)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._rich is not None:
            self._rich.stop()
