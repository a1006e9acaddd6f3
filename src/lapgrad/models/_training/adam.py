"""Adam, with gradients that the caller has computed, a rate per step, and a state that can be saved."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from lapgrad import _exceptions

_Value = TypeVar("_Value")
#: Returns the learning rate of a step, given its number, which starts at 0.
Rate = Callable[[int], float]


class AdamOptimizer:
    """Adam over ``parameters``, which it changes in place.

    Args:
        parameters: Leaves that require gradients.
        rate: The learning rate of the first step.
        on_device: Keep learning rate and step counts in tensors on the device of the parameters, so that a
            step can be recorded as a CUDA graph.
    """

    def __init__(self, parameters: Sequence[Tensor], rate: float, on_device: bool = False) -> None:
        self.parameters, self.rate = parameters, rate
        self._rate_on_device: Tensor | None = None
        if on_device:
            self._rate_on_device = torch.tensor(rate, dtype=torch.float32, device=parameters[0].device)
        first = rate if self._rate_on_device is None else self._rate_on_device
        self._adam = torch.optim.Adam(parameters, first, fused=on_device or None)

    def set_rate(self, rate: float) -> None:
        """Set the learning rate of the steps that follow."""
        self.rate = rate
        if self._rate_on_device is not None:
            self._rate_on_device.fill_(rate)
        for group in self._adam.param_groups:
            group["lr"] = rate if self._rate_on_device is None else self._rate_on_device

    def move(self, gradients: Sequence[Tensor | None], *, is_recording: bool = False) -> None:
        """Take one step with these gradients; a parameter whose gradient is None stays.

        Args:
            gradients: One per parameter.
            is_recording: Whether the step is being recorded as a CUDA graph.
        """
        # Torch requires this flag in a graph, and warns of it elsewhere.
        self._adam.param_groups[0]["capturable"] = is_recording
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient
        self._adam.step()

    def clear_gradients(self) -> None:
        """Free the gradients that ``move`` has stored in the parameters."""
        self._adam.zero_grad(set_to_none=True)

    def get_state(self) -> dict[str, Any]:
        """Return a copy of moments and step counts. It can be loaded on any device."""
        state = self._adam.state_dict()
        groups = [{**group, "lr": self.rate, "capturable": False} for group in state["param_groups"]]
        return {**state, "state": copy.deepcopy(state["state"]), "param_groups": groups}

    def load_state(self, who: str, state: dict[str, Any]) -> None:
        """Load moments and step counts of an earlier run, but keep the settings for this device.

        Args:
            who: Name of the model, for messages.
            state: What ``get_state`` returned. It is not changed.

        Raises:
            OptionError: The state is not one of ``get_state``, or has another number of parameters.
        """
        (own,) = self._adam.param_groups
        chosen = {name: own[name] for name in ("fused", "foreach", "capturable")}
        try:
            groups = [{**group, **chosen, "lr": self.rate} for group in state["param_groups"]]
            known = copy.deepcopy(state["state"])  # Adam would change the tensors of the caller
            self._adam.load_state_dict({**state, "state": known, "param_groups": groups})
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise _exceptions.OptionError(f"{who}: resume does not belong to this model: {error}.") from error
        self.set_rate(self.rate)
        if self._rate_on_device is None:
            for of_parameter in self._adam.state.values():
                of_parameter["step"] = of_parameter["step"].cpu()


def minimise_with_adam(
    optimizer: AdamOptimizer,
    evaluate: Callable[[], tuple[_Value, Sequence[Tensor | None]]],
    compute_rate: Rate,
    *,
    first: int = 0,
    steps: int | None = None,
    accept: Callable[[_Value], None] | None = None,
) -> None:
    """Minimise a loss over the parameters of ``optimizer``.

    Args:
        optimizer: Moves the parameters.
        evaluate: Returns the loss and its gradients at the present parameters.
        compute_rate: Returns the learning rate of a step.
        first: The number of the first step.
        steps: How many steps; None: until ``accept`` raises an exception.
        accept: Called with each loss before the parameters move away from where it was evaluated.
    """
    for step in itertools.count(first) if steps is None else range(first, first + steps):
        optimizer.set_rate(compute_rate(step))
        value, gradients = evaluate()
        if accept is not None:
            accept(value)
        # Gradients are stored in the parameters only now: ``accept`` may call code of users that has its own.
        optimizer.move(gradients)
        optimizer.clear_gradients()
