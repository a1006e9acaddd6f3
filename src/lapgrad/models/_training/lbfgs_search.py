"""The state of a fit by L-BFGS, as an object that can be stored and restored."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from lapgrad import _exceptions
from lapgrad.models._training.lbfgs import Pairs, Point, make_pairs
from lapgrad.models._training.resuming import State, check_state

#: The entries of ``training_state`` of a fit by L-BFGS, and their types.
_STATE = {
    "pairs": list,
    "step": int,
    "x": Tensor,
    "gradient": Tensor,
    "loss": float,
    "jitter": float,
    "quiet": int,
    "loss_of_start": float,
    "has_restarted": bool,
}


class Search(NamedTuple):
    """One search for a minimum, as of its last move.

    Attributes:
        pairs: What it has learned of the Hessian; later moves add to it.
        point: The last point that it moved to. Its note is what had to be added to a diagonal there.
        steps: Evaluations of the loss until it moved there, those of earlier searches included.
        quiet: How many moves in a row have gained nearly nothing.
        loss_of_start: The loss where it began.
        has_restarted: Whether another search came before it.
    """

    pairs: Pairs
    point: Point
    steps: int
    quiet: int
    loss_of_start: float
    has_restarted: bool

    def move(self, point: Point, steps: int, *, is_quiet: bool) -> Search:
        """Return the search after a move to ``point``, which gained nearly nothing if it is quiet."""
        quiet = self.quiet + 1 if is_quiet else 0
        return Search(self.pairs, point, steps, quiet, self.loss_of_start, self.has_restarted)

    def get_state(self) -> State:
        """Return copies of everything, as tensors and numbers that ``torch.save`` can write."""
        return {
            "pairs": [(s.clone(), y.clone(), rho) for s, y, rho in self.pairs],
            "step": self.steps,
            "x": self.point.x.clone(),
            "gradient": self.point.gradient.clone(),
            "loss": self.point.value,
            "jitter": self.point.note,
            "quiet": self.quiet,
            "loss_of_start": self.loss_of_start,
            "has_restarted": self.has_restarted,
        }


def restore_search(who: str, state: State, count: int) -> Search:
    """Return the search that ``get_state`` described.

    Args:
        who: Name of the model, for messages.
        state: What ``get_state`` has returned. It is copied.
        count: How many numbers are learned.

    Raises:
        OptionError: It is something else, or of a model with other parameters.
    """
    check_state(who, state, _STATE)
    x, gradient = state["x"].clone(), state["gradient"].clone()
    pairs = make_pairs((s.clone(), y.clone(), rho) for s, y, rho in state["pairs"])
    if any(vector.shape != (count,) for vector in (x, gradient, *(v for s, y, _ in pairs for v in (s, y)))):
        raise _exceptions.OptionError(f"{who}: resume is of a model with other parameters.")
    point = Point(x, state["loss"], gradient, state["jitter"])
    return Search(pairs, point, state["step"], state["quiet"], state["loss_of_start"], state["has_restarted"])
