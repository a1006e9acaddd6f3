"""Shows the progress of a fit as a bar in the terminal, with the library rich."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from lapgrad import _errors


class RowCounter:
    """Counts the rows of data that an evaluation of a loss has read, for models whose data are in a file.

    Attributes:
        listener: Called with the rows read so far, and with how many the evaluation will read; None: no call.
    """

    def __init__(self) -> None:
        self.listener: Callable[[int, int], None] | None = None
        self._done, self._total = 0, 0

    def __deepcopy__(self, memo: dict[int, object]) -> RowCounter:
        return RowCounter()  # the bar belongs to one fit

    def start(self, total: int) -> None:
        """Begin an evaluation that will read ``total`` rows."""
        self._done, self._total = 0, total

    def advance(self, count: int) -> None:
        """Count rows that were read."""
        self._done += count
        if self.listener is not None:
            self.listener(self._done, self._total)


@contextlib.contextmanager
def show_progress(
    wanted: bool, steps: int, title: str, counter: RowCounter | None = None
) -> Iterator[Callable[[int, float], None]]:
    """Show a progress bar (if ``wanted``), and yield the function that updates it: update(step, loss).

    With a ``counter`` a second bar shows the rows of data that the present step has read.

    Raises:
        MissingDependencyError: A bar is wanted, but rich is not installed.
    """
    if not wanted:
        yield lambda step, loss: None
        return
    try:
        from rich import progress
    except ImportError as error:
        raise _errors.missing_dependency("progress=True", "rich", "models") from error
    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TextColumn("{task.fields[note]}"),
        progress.TimeElapsedColumn(),
    )
    with progress.Progress(*columns) as bar:
        task = bar.add_task(title, total=steps, note="loss -")
        if counter is not None:
            rows = bar.add_task("rows", total=None, note="")
            counter.listener = lambda done, total: bar.update(rows, completed=done, total=total)

        def update(step: int, loss: float) -> None:
            bar.update(task, completed=step, note=f"loss {loss:.6g}")

        try:
            yield update
        finally:
            if counter is not None:
                counter.listener = None
