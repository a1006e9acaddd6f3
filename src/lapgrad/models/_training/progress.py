"""The progress bar of a fit, drawn by rich where that is installed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from lapgrad import _errors


@contextlib.contextmanager
def bar(wanted: bool, steps: int, title: str) -> Iterator[Callable[[int, float], None]]:
    """Yields a function to be called with the number of the step and the loss.

    Raises:
        MissingDependencyError: A bar is wanted, and rich is not installed.
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
        progress.TextColumn("loss {task.fields[loss]}"),
        progress.TimeElapsedColumn(),
    )
    with progress.Progress(*columns) as shown:
        task = shown.add_task(title, total=steps, loss="-")

        def show(step: int, loss: float) -> None:
            shown.update(task, completed=step, loss=f"{loss:.6g}")

        yield show
