"""Mean functions of Gaussian processes: zero, a constant, a linear function, or any module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lapgrad import _errors, _exceptions
from lapgrad.linalg.solve_psd import solve_psd
from lapgrad.models._gp.diagonal import add_to_diagonal
from lapgrad.models._parameters import ParametrisedModule, unbounded

MEANS = ("constant", "linear", "zero")
_MODULE = "module"


class WithMeanFunction(ParametrisedModule):
    """A mixin for models with a mean function.

    Attributes:
        mean: "constant", "linear", "zero" or "module".
        constant: (k,), learned; with a constant or linear mean.
        slope: (d, k), learned; with a linear mean.
        mean_module: The module of the user, with the mean "module".
    """

    constant = unbounded()
    slope = unbounded()
    mean: str
    mean_module: nn.Module | None

    def set_mean_function(self, mean: str | nn.Module, inputs: Tensor, outputs: Tensor) -> None:
        """Set the mean, and start it by least squares.

        Args:
            mean: One of ``MEANS``, or a module that maps (n, d) to (n,) or (n, k).
            inputs: (n, d), in the units that the mean function gets.
            outputs: (n, k), in the units that it returns.
        """
        who = type(self).__name__
        is_module = isinstance(mean, nn.Module)
        if not is_module and mean not in MEANS:
            raise _errors.unknown_option(who, "mean", mean, MEANS)
        self.mean = _MODULE if is_module else str(mean)
        self.mean_module = mean if isinstance(mean, nn.Module) else None
        if self.mean in ("constant", "linear"):
            self.constant = outputs.mean(0)
        if self.mean == "linear":
            centre = inputs.mean(0)
            centred = inputs - centre
            # A little is added to the diagonal, because columns may depend on each other.
            squares = centred.mT @ centred
            ridge = 1e-6 * squares.diagonal().mean().clamp_min(torch.finfo(inputs.dtype).tiny)
            slope = solve_psd(add_to_diagonal(squares, ridge), centred.mT @ (outputs - outputs.mean(0)))
            self.slope = slope
            self.constant = outputs.mean(0) - centre @ slope
        if is_module:
            self.to(dtype=inputs.dtype, device=inputs.device)
            with torch.no_grad():
                self.compute_mean(inputs, outputs.shape[1])

    def compute_mean(self, inputs: Tensor, outputs: int) -> Tensor:
        """Return the mean at inputs (*batch, n, d), in a shape that broadcasts to (*batch, n, outputs).

        Raises:
            ShapeError: A module of the user returns another shape.
        """
        if self.mean_module is None:
            return _evaluate_mean(inputs, self.get_mean_parameters(), outputs)
        return self._check_mean(self.mean_module(inputs), inputs, outputs)

    def _check_mean(self, values: Any, inputs: Tensor, outputs: int) -> Tensor:
        """Return what a module of the user has returned, as (*batch, n, 1) or (*batch, n, outputs)."""
        if isinstance(values, Tensor) and values.shape == inputs.shape[:-1]:
            values = values[..., None]
        if (
            not isinstance(values, Tensor)
            or values.shape[:-1] != inputs.shape[:-1]
            or values.shape[-1] not in (1, outputs)
        ):
            seen = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise _exceptions.ShapeError(
                f"{type(self).__name__}: the mean must map inputs of shape {tuple(inputs.shape)} to "
                f"{(*inputs.shape[:-1], outputs)}, got {seen}."
            )
        return values

    def get_mean_parameters(self) -> list[Tensor]:
        """Return the tensors that the mean depends on: arguments of ``compute_mean_from``."""
        if self.mean_module is not None:
            return list(self.mean_module.parameters())
        if self.mean == "zero":
            return []
        return [self.constant, self.slope] if self.mean == "linear" else [self.constant]

    def compute_mean_from(self, inputs: Tensor, parameters: Sequence[Tensor], outputs: int) -> Tensor:
        """Return ``compute_mean`` as a function of the tensors of ``get_mean_parameters``, of any dtype."""
        if self.mean_module is None:
            return _evaluate_mean(inputs, parameters, outputs)
        names = [name for name, _ in self.mean_module.named_parameters()]
        tensors = dict(zip(names, parameters, strict=True))
        for name, buffer in self.mean_module.named_buffers():
            tensors[name] = buffer.to(inputs) if buffer.is_floating_point() else buffer
        values = torch.func.functional_call(self.mean_module, tensors, (inputs,))
        return self._check_mean(values, inputs, outputs)

    def has_constant_mean(self) -> bool:
        """Return whether the mean can take any constant value, so that noise around it has mean 0."""
        return self.mean in ("constant", "linear")


def _evaluate_mean(inputs: Tensor, parameters: Sequence[Tensor], outputs: int) -> Tensor:
    """Return zero, a constant, or a constant and a linear function, by the number of parameters."""
    if not parameters:
        return inputs.new_zeros(outputs)
    constant, *slopes = parameters
    return constant + inputs @ slopes[0] if slopes else constant


def find_mean(config: Mapping[str, Any], modules: Mapping[str, nn.Module]) -> str | nn.Module:
    """Return the argument ``mean`` of a model that was saved.

    Raises:
        OptionError: It is a module, and ``modules`` has no "mean".
    """
    if config["mean"] != _MODULE:
        mean: str = config["mean"]
        return mean
    if "mean" not in modules:
        raise _exceptions.OptionError(
            "load: the file has the weights of the mean function, not its code: pass modules={'mean': ...}, "
            "a module of the same architecture."
        )
    return modules["mean"]
