"""Models whose fit can be interrupted and resumed: how the state of a fit is kept and checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lapgrad import _exceptions

State = dict[str, Any]


class LiveState:
    """The state of a fit that is running, computed when it is asked for. Copies hold the state itself.

    Args:
        compute: Returns the state, as copies of tensors, and numbers.
    """

    def __init__(self, compute: Callable[[], State]) -> None:
        self.compute = compute

    def __reduce__(self) -> tuple[type[State], tuple[State]]:
        # A copy of the model, made in a callback, does not belong to the run.
        return dict, (self.compute(),)


class ResumableModel:
    """A model whose ``fit`` can be interrupted and resumed."""

    _training: State | LiveState | None = None

    def keep_training_state(self, state: State | LiveState | None) -> None:
        """Set what ``training_state`` returns; None: there is no state to resume from."""
        self._training = state

    def training_state(self) -> State:
        """Return the state of the last fit for ``fit(..., resume=...)``, as of the last check of the loss.

        It holds the state of the optimiser and, for fits on minibatches, the order of the data and the state
        of the random generator, as tensors, numbers and text that ``torch.save`` can write. The parameters
        are not part of it: they are in ``state_dict()``. In a callback of ``fit`` it is the state of the step
        that the callback is told of.

        Raises:
            OptionError: The model has not been fitted, or the last fit cannot be resumed: it tried several
                starts, or was ended by an error.
        """
        if self._training is None:
            raise _exceptions.OptionError(
                f"{type(self).__name__}.training_state: fit has not been called, or cannot be resumed "
                f"because it tried several starts or was ended by an error."
            )
        return self._training.compute() if isinstance(self._training, LiveState) else self._training


def check_state(who: str, state: object, kinds: Mapping[str, type | tuple[type, ...]]) -> None:
    """Raise an OptionError unless ``state`` is a dictionary with entries of these types."""
    known = state if isinstance(state, dict) else {}
    for name, kind in kinds.items():
        if not isinstance(known.get(name), kind):
            raise _exceptions.OptionError(
                f"{who}: resume must be what training_state has returned: missing entry {name!r}."
            )
