"""The hyper-parameters of a state space model: their descriptors, and the names that users call them by."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from lapgrad.models._parameters import Hyperparameter
from lapgrad.models._state_space.covariance import Covariance


def iterate_descriptors(model: nn.Module) -> Iterator[tuple[str, nn.Module, Hyperparameter]]:
    """Yield the path, the module and the descriptor of all hyper-parameters of a model and its parts."""
    for path, module in model.named_modules():
        found: dict[str, Hyperparameter] = {}
        for base in reversed(type(module).__mro__):
            found |= {name: value for name, value in vars(base).items() if isinstance(value, Hyperparameter)}
        for name in sorted(found):
            if hasattr(module, found[name].raw_name):
                yield f"{path}.{name}" if path else name, module, found[name]


def list_descriptors(model: nn.Module) -> list[tuple[Tensor, Hyperparameter, bool]]:
    """Return the raw tensor and descriptor of all hyper-parameters, and whether each is a standard deviation."""
    return [
        (
            module.get_parameter(descriptor.raw_name),
            descriptor,
            isinstance(module, Covariance) and descriptor.name == "deviations",
        )
        for _, module, descriptor in iterate_descriptors(model)
    ]
