"""The hyper-parameters of a state space model: their descriptors, and the names that users call them by."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from torch import Tensor, nn

from lapgrad.models._bounds import Bounds
from lapgrad.models._parameters import Hyperparameter, find_bounds
from lapgrad.models._state_space.covariance import Covariance
from lapgrad.models.components.base import Sum


def iterate_descriptors(model: nn.Module) -> Iterator[tuple[str, nn.Module, Hyperparameter]]:
    """Yield the path, the module and the descriptor of all hyper-parameters of a model and its parts."""
    for path, module in model.named_modules():
        for name, descriptor in _list_descriptors_of_classes(type(module).__mro__):
            if hasattr(module, descriptor.raw_name):
                yield f"{path}.{name}" if path else name, module, descriptor


@functools.cache
def _list_descriptors_of_classes(kinds: tuple[type, ...]) -> list[tuple[str, Hyperparameter]]:
    """Return names and descriptors of a class and its bases, by name. Looking for them takes long."""
    found: dict[str, Hyperparameter] = {}
    for base in reversed(kinds):
        found |= {name: value for name, value in vars(base).items() if isinstance(value, Hyperparameter)}
    return sorted(found.items())


def list_descriptors(model: nn.Module) -> list[tuple[Tensor, Hyperparameter, bool, Bounds | None]]:
    """Return raw tensors and descriptors of all hyper-parameters, whether each is a deviation, and bounds."""
    return [
        (
            module.get_parameter(descriptor.raw_name),
            descriptor,
            isinstance(module, Covariance) and descriptor.name == "deviations",
            find_bounds(module, descriptor.name),
        )
        for _, module, descriptor in iterate_descriptors(model)
    ]


def name_hyperparameters(model: nn.Module) -> dict[str, list[tuple[nn.Module, Hyperparameter]]]:
    """Return the hyper-parameters of a state space model by the names that its documentation uses.

    ``noise_var`` stands for all numbers of the covariance of the noise. Those of components have the label of
    their component in front, such as ``trend.slope_variance``: the second of a kind has a number,
    ``seasonal_2.variance``.
    """
    component = model.get_submodule("component")
    labels = component.labels if isinstance(component, Sum) else None
    named: dict[str, list[tuple[nn.Module, Hyperparameter]]] = {}
    for path, module, descriptor in iterate_descriptors(model):
        steps = path.split(".")
        if steps[0] == "noise":
            name = "noise_var"
        elif labels is not None:
            name = ".".join((labels[int(steps[2])], *steps[3:]))
        else:
            name = ".".join((getattr(component, "label", "component"), *steps[1:]))
        named.setdefault(name, []).append((module, descriptor))
    return dict(sorted(named.items(), key=lambda entry: entry[0] == "noise_var"))
