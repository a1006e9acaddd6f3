"""Shows the progress of a fit as a bar in the terminal, with the library rich."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from lapgrad import _errors


@contextlib.contextmanager
def show_progress(wanted: bool, steps: int, title: str) -> Iterator[Callable[[int, float], None]]:
    """Show a progress bar (if ``wanted``), and yield the function that updates it: update(step, loss).

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
        progress.TextColumn("loss {task.fields[loss]}"),
        progress.TimeElapsedColumn(),
    )
    with progress.Progress(*columns) as bar:
        task = bar.add_task(title, total=steps, loss="-")

        def update(step: int, loss: float) -> None:
            bar.update(task, completed=step, loss=f"{loss:.6g}")

        yield update
