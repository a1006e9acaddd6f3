"""The outcome of a fit, of any model."""

from __future__ import annotations

import dataclasses
from typing import Any

from lapgrad.models import _plots


@dataclasses.dataclass(frozen=True)
class FitResult:
    """The outcome of a fit.

    Attributes:
        loss: The loss at the parameters that the model has now.
        history: The loss at the start and after each move of the parameters. (The line search of L-BFGS may
            evaluate the loss several times for one move.)
        steps: Evaluations of the loss and its gradient.
        converged: Whether it stopped because the loss no longer changed.
        reason: Why it stopped, in words.
        seconds: How long it took.
    """

    loss: float
    history: list[float]
    steps: int
    converged: bool
    reason: str
    seconds: float

    def __repr__(self) -> str:
        """One line: loss, whether it has converged, steps, time and reason."""
        outcome = "converged" if self.converged else "not converged"
        return (
            f"FitResult(loss {self.loss:.6g}, {outcome} after {self.steps} steps in {self.seconds:.2g} s: "
            f"{self.reason})"
        )

    def plot(self, axes: Any = None) -> Any:
        """Plot the learning curve with matplotlib.

        Args:
            axes: Matplotlib axes to draw into; None: those of a new figure.

        Returns:
            The axes.
        """
        return _plots.plot_learning_curve(self.history, axes)
