"""Kernels on the outputs of a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from lapgrad import _exceptions
from lapgrad.fused._kernel_matrix import Formula
from lapgrad.models._parameters import get_names_not_given
from lapgrad.models._storage.entries import PART, TEXT, check_entries
from lapgrad.models.kernels._blocks import Tree
from lapgrad.models.kernels.base import Kernel, kernel_from_config, part_of_state


class Deep(Kernel):
    """k(x, z) = base(network(x), network(z)): the network is learned together with everything else.

    Args:
        base: The kernel of the transformed points.
        network: Any module that maps (*batch, n, d) to (*batch, n, p), each row independently. It is called
            once for each set of points. It follows the model to its dtype and device.
        name: Its name in files: ``Model.load(path, modules={name: network})``.
        active_dims: The columns of the points that the network gets; None: all of them.

    Example:
        >>> import torch
        >>> from lapgrad.models.kernels import RBF, Deep
        >>> kernel = Deep(RBF(), torch.nn.Linear(3, 2, dtype=torch.float64))
        >>> kernel(torch.zeros(5, 3, dtype=torch.float64)).shape
        torch.Size([5, 5])
    """

    def __init__(
        self,
        base: Kernel,
        network: nn.Module,
        *,
        name: str = "network",
        active_dims: Sequence[int] | None = None,
    ) -> None:
        super().__init__(active_dims=active_dims, name=name)
        if not isinstance(base, Kernel) or not isinstance(network, nn.Module):
            raise _exceptions.OptionError(
                f"Deep: base must be a Kernel and network an nn.Module, got {type(base).__name__} and "
                f"{type(network).__name__}."
            )
        self.base, self.network = base, network

    @property
    def part_name(self) -> str | None:
        """None: the name is that of the network."""
        return None

    def start(self, X: Tensor, y: Tensor, variance: Tensor) -> None:
        """Start ``base`` on the outputs of the network, which is evaluated as it is after learning."""
        if all(not get_names_not_given(part) for part in self.base.modules()):
            return
        was_training = self.network.training
        self.network.eval()
        try:
            transformed = self.network(X)
        finally:
            self.network.train(was_training)
        if (
            isinstance(transformed, Tensor) and transformed.shape[:-1] == X.shape[:-1]
        ):  # else ``embed`` says it
            self.base.start_part(transformed, y, variance)

    @property
    def pure(self) -> bool:  # type: ignore[override]  # a class says it, this one asks its parts
        """Whether ``base`` is pure: the network is part of ``embed``, not of ``matrix``."""
        return self.base.pure

    def express(self, scalars: Tree, F: Tree) -> Formula | None:
        """Return the formula of ``base``; of a subclass there is none."""
        return self.base.express(scalars, F) if type(self) is Deep else None

    def embed(self, X: Tensor) -> Tree:
        """Return the features that ``base`` computes from the outputs of the network."""
        transformed = self.network(X)
        if not isinstance(transformed, Tensor) or transformed.shape[:-1] != X.shape[:-1]:
            seen = tuple(transformed.shape) if isinstance(transformed, Tensor) else type(transformed).__name__
            raise _exceptions.ShapeError(
                f"Deep: the network must map points of shape {tuple(X.shape)} to {(*X.shape[:-1], 'p')}, got "
                f"{seen}."
            )
        return self.base.features(transformed)

    def scalars(self) -> Tree:
        """Return the scalars of ``base``."""
        return self.base.scalars()

    def matrix(self, scalars: Tree, F: Tree, G: Tree | None) -> Tensor:
        """Return the matrix of ``base``."""
        return self.base.matrix(scalars, F, G)

    def diagonal(self, scalars: Tree, F: Tree) -> Tensor:
        """Return the diagonal of ``base``."""
        return self.base.diagonal(scalars, F)

    def config(self) -> dict[str, Any]:
        """Return options, the description of ``base`` and the name of the network."""
        return {**super().config(), "base": self.base.config()}

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], tensors: Mapping[str, Tensor], modules: Mapping[str, nn.Module]
    ) -> Kernel:
        """Return a kernel with the network of that name from ``modules``."""
        check_entries(config, {"name": TEXT, "base": PART}, f"the kernel {cls.__name__}")
        name = config["name"]
        if name not in modules:
            raise _exceptions.OptionError(
                f"load: the file has the weights of the network {name!r}, not its code: pass "
                f"modules={{{name!r}: ...}}, a module of the same architecture."
            )
        base = kernel_from_config(config["base"], part_of_state(tensors, "base."), modules)
        return cls(base, modules[name], name=name, active_dims=config["active_dims"])
