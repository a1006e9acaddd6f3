"""The covariance of several outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lapgrad import _exceptions
from lapgrad.models._parameters import Value, positive, unbounded
from lapgrad.models._products import multiply
from lapgrad.models._storage.entries import INTEGER, check_entries
from lapgrad.models.kernels._blocks import Tree
from lapgrad.models.kernels._symmetry import mirror_lower_triangle
from lapgrad.models.kernels.base import Kernel


class Coregionalisation(Kernel):
    """k(i, j) = B_ij with B = mixing mixingᵀ + diag(own_var): the covariance of outputs i and j = 0, 1, ...

    Points are numbers of outputs. Multiplied by a kernel of the inputs it is the intrinsic model of
    coregionalisation: all outputs are mixtures of functions with the same covariance.
    ``RBF(active_dims=[0, 1]) * Coregionalisation(3, active_dims=[2])`` has two inputs, and the number of the
    output in the third column. (``MultiOutputGPRegression`` makes these columns.)

    Args:
        outputs: How many outputs there are.
        rank: How many functions they have in common.
        mixing: (outputs, rank); None: from the data, or random.
        own_var: (outputs,), positive: the variances of what each output has for itself. None: from the data.
        active_dims: The one column with the number of the output; None: the only one.
        name: A name of this part of a sum or product.

    Example:
        >>> import torch
        >>> from lapgrad.models.kernels import Coregionalisation
        >>> kernel = Coregionalisation(2, mixing=[[1.0], [2.0]], own_var=[0.5, 0.5])
        >>> kernel(torch.tensor([0.0, 1.0])).tolist()
        [[1.5, 2.0], [2.0, 4.5]]
    """

    pure = True
    mixing = unbounded()
    own_var = positive()

    def __init__(
        self,
        outputs: int,
        rank: int = 1,
        mixing: Value | Sequence[Sequence[float]] | None = None,
        own_var: Value | None = None,
        *,
        active_dims: Sequence[int] | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(active_dims=active_dims, name=name)
        for option, value in (("outputs", outputs), ("rank", rank)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise _exceptions.OptionError(f"Coregionalisation: {option} must be positive, got {value!r}.")
        self.outputs, self.rank = outputs, rank
        if mixing is None:
            source = torch.Generator().manual_seed(0)  # any values that differ, so that functions differ
            mixing = torch.randn(outputs, rank, dtype=torch.float64, generator=source)
        self.mixing = mixing
        self.own_var = torch.ones(outputs) if own_var is None else own_var
        shapes = [tuple(self.get_parameter(f"raw_{name}").shape) for name in ("mixing", "own_var")]
        if shapes != [(outputs, rank), (outputs,)]:
            raise _exceptions.ShapeError(
                f"Coregionalisation: mixing must have shape {(outputs, rank)} and own_var {(outputs,)}, got "
                f"{shapes[0]} and {shapes[1]}."
            )

    def start(self, X: Tensor, y: Tensor, variance: Tensor) -> None:
        """Nothing: a product with this kernel starts its other factors with the variance."""

    def compute_covariance(self) -> Tensor:
        """Return B, (outputs, outputs)."""
        root = self._compute_root()
        return root @ root.mT

    def embed(self, X: Tensor) -> Tensor:
        """Rows of a root of B."""
        if X.shape[-1] != 1:
            raise _exceptions.ShapeError(
                f"Coregionalisation: points have one column, the number of the output, got {X.shape[-1]}."
            )
        index = X[..., 0].round().long()
        if not X.is_meta and X.numel() and not (int(index.min()) >= 0 and int(index.max()) < self.outputs):
            raise _exceptions.OptionError(
                f"Coregionalisation: numbers of outputs must be 0 to {self.outputs - 1}, got "
                f"{int(index.min())} to {int(index.max())}."
            )
        root = self._compute_root().to(X)
        return nn.functional.one_hot(index, self.outputs).to(X) @ root

    def matrix(self, scalars: Tree, F: Tree, G: Tree | None) -> Tensor:
        """F Gᵀ."""
        return mirror_lower_triangle(multiply(F, F.mT)) if G is None else multiply(F, G.mT)

    def diagonal(self, scalars: Tree, F: Tree) -> Tensor:
        """|f|²."""
        features: Tensor = F
        return features.square().sum(-1)

    def config(self) -> dict[str, Any]:
        """Return options, the number of outputs and the rank."""
        return {**super().config(), "outputs": self.outputs, "rank": self.rank}

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], tensors: Mapping[str, Tensor], modules: Mapping[str, nn.Module]
    ) -> Kernel:
        """Return a kernel of the size that was saved."""
        check_entries(config, {"outputs": INTEGER, "rank": INTEGER}, "the kernel Coregionalisation")
        return cls(config["outputs"], config["rank"], active_dims=config["active_dims"])

    def _compute_root(self) -> Tensor:
        """Return [mixing, diag(own_var)^(1/2)], (*batch, outputs, rank + outputs)."""
        own = torch.diag_embed(self.own_var.sqrt())
        own = own.squeeze(-3) if own.dim() > 3 else own  # that of a batch is (s, 1, outputs, outputs)
        return torch.cat([self.mixing, own], -1)
