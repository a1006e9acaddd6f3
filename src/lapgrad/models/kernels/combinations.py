"""Kernels made of kernels: sums, products and powers."""

from __future__ import annotations

import abc
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, cast

import torch
from torch import Tensor, nn

from lapgrad import _errors, _exceptions
from lapgrad.fused._kernel_matrix import Formula
from lapgrad.models._storage.entries import NUMBER, PART, PARTS, check_entries
from lapgrad.models.kernels._blocks import Tree
from lapgrad.models.kernels.base import Kernel, check_kernel, kernel_from_config, part_of_state

_NONE: frozenset[Kernel] = frozenset()


class _Combination(Kernel):
    """A kernel made of parts; its features and scalars are the tuples of those of the parts."""

    def __init__(
        self, *parts: Kernel, active_dims: Sequence[int] | None = None, name: str | None = None
    ) -> None:
        super().__init__(active_dims=active_dims, name=name)
        if not parts or not all(isinstance(part, Kernel) for part in parts):
            raise _exceptions.OptionError(
                f"{type(self).__name__}: at least one kernel is wanted, got {parts!r}."
            )
        flat: list[Kernel] = []
        for part in parts:
            is_plain = part.active_dims is None and part.name is None
            if isinstance(part, _Combination) and type(part) is type(self) and is_plain:
                flat.extend(part.kernels())
            else:
                flat.append(part)
        names = [part.part_name for part in flat if part.part_name is not None]
        if len(set(names)) < len(names):
            raise _exceptions.OptionError(f"{type(self).__name__}: two parts have the same name: {names}.")
        self.parts = nn.ModuleList(flat)

    @abc.abstractmethod
    def start(self, X: Tensor, y: Tensor, variance: Tensor) -> None:
        """Start all parts."""

    def iterate_parts(self, X: Tensor) -> Iterator[tuple[Kernel, Tensor]]:
        """Yield the parts of all parts."""
        for part in self.kernels():
            yield from part.iterate_parts(self._select_columns(X))

    def kernels(self) -> list[Kernel]:
        """Return the parts."""
        return [cast(Kernel, part) for part in self.parts]

    @property
    def pure(self) -> bool:  # type: ignore[override]  # a class says it, this one asks its parts
        """Whether all parts are pure."""
        return all(part.pure for part in self.kernels())

    def compare_points(self, X: Tensor, Z: Tensor) -> dict[Kernel, Tensor]:
        """Return whether points are near each other, for all parts that have a faster formula then."""
        X, Z = self._select_columns(X), self._select_columns(Z)
        return {
            kernel: is_near
            for part in self.kernels()
            for kernel, is_near in part.compare_points(X, Z).items()
        }

    def embed(self, X: Tensor) -> Tree:
        """Return the features of all parts."""
        return tuple(part.features(X) for part in self.kernels())

    def scalars(self) -> Tree:
        """Return the scalars of all parts."""
        return tuple(part.scalars() for part in self.kernels())

    def matrix(self, scalars: Tree, F: Tree, G: Tree | None) -> Tensor:
        """Return the matrices of the parts, combined."""
        return self._combine_matrices(scalars, F, G, _NONE)

    def evaluate_matrix(self, scalars: Tree, F: Tree, G: Tree | None, near: Set[Kernel]) -> Tensor:
        """Return ``matrix(scalars, F, G)``; the points of kernels in ``near`` are known to be close."""
        if type(self).matrix is not _Combination.matrix:  # a subclass with a formula of its own
            return self.matrix(scalars, F, G)
        return self._combine_matrices(scalars, F, G, near)

    def _combine_matrices(self, scalars: Tree, F: Tree, G: Tree | None, near: Set[Kernel]) -> Tensor:
        columns = [None] * len(self.parts) if G is None else G
        return self._combine(
            part.evaluate_matrix(scalar, f, g, near)
            for part, scalar, f, g in zip(self.kernels(), scalars, F, columns, strict=True)
        )

    def _fill_formula(self, name: str, scalars: Tree, F: Tree) -> Formula | None:
        parts = [part.express(s, f) for part, s, f in zip(self.kernels(), scalars, F, strict=True)]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        text = functools.reduce(lambda left, right: f"{name}<{left}, {right}>", [part.text for part in known])
        return Formula(
            text,
            tuple(scalar for part in known for scalar in part.scalars),
            tuple(features for part in known for features in part.features),
        )

    def diagonal(self, scalars: Tree, F: Tree) -> Tensor:
        """Return the diagonals of the parts, combined."""
        return self._combine(
            part.diagonal(scalar, f) for part, scalar, f in zip(self.kernels(), scalars, F, strict=True)
        )

    @abc.abstractmethod
    def _combine(self, terms: Iterable[Tensor]) -> Tensor: ...

    def config(self) -> dict[str, Any]:
        """Return options and the descriptions of the parts."""
        return {**super().config(), "parts": [part.config() for part in self.kernels()]}

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], tensors: Mapping[str, Tensor], modules: Mapping[str, nn.Module]
    ) -> Kernel:
        """Return a kernel from the descriptions of its parts."""
        check_entries(config, {"parts": PARTS}, f"the kernel {cls.__name__}")
        parts = [
            kernel_from_config(part, part_of_state(tensors, f"parts.{i}."), modules)
            for i, part in enumerate(config["parts"])
        ]
        return cls(*parts, active_dims=config["active_dims"])


class Sum(_Combination):
    """k(x, z) = k_1(x, z) + k_2(x, z) + ...: also written ``k1 + k2``.

    Example:
        >>> import torch
        >>> from lapgrad.models.kernels import RBF
        >>> kernel = RBF(variance=2.0) + RBF(variance=3.0)
        >>> kernel.diag(torch.zeros(2)).tolist()
        [5.0, 5.0]
    """

    formula = "Sum"

    def start(self, X: Tensor, y: Tensor, variance: Tensor) -> None:
        """Start all parts with equal shares of the variance."""
        for part in self.kernels():
            part.start_part(X, y, variance / len(self.parts))

    def _combine(self, terms: Iterable[Tensor]) -> Tensor:
        return functools.reduce(torch.add, terms)


class Product(_Combination):
    """k(x, z) = k_1(x, z) k_2(x, z) ...: also written ``k1 * k2``.

    Example:
        >>> import torch
        >>> from lapgrad.models.kernels import RBF
        >>> kernel = RBF(variance=2.0) * RBF(variance=3.0)
        >>> kernel.diag(torch.zeros(2)).tolist()
        [6.0, 6.0]
    """

    formula = "Product"

    def start(self, X: Tensor, y: Tensor, variance: Tensor) -> None:
        """Choose starting values of all factors from the data.

        If the user gave no variance of any factor, the first one gets all of ``variance``; the variances of
        the other factors are 1, because only the product of all variances matters.
        """
        open_variances = [has_open_variance(part) for part in self.kernels()]
        first = open_variances.index(True) if all(open_variances) else None
        for index, part in enumerate(self.kernels()):
            part.start_part(X, y, variance if index == first else torch.ones_like(variance))

    def _combine(self, terms: Iterable[Tensor]) -> Tensor:
        return functools.reduce(torch.mul, terms)


class Power(Kernel):
    """k(x, z)^exponent: also written ``kernel ** exponent``.

    Args:
        base: The kernel.
        exponent: Positive. With a whole number the power of any kernel is a kernel. With others that is so
            for kernels that are infinitely divisible, such as ``RBF``.
        active_dims: The columns of the points that ``base`` gets; None: all of them.
        name: A name of this part of a sum or product.

    Example:
        >>> import torch
        >>> from lapgrad.models.kernels import Linear
        >>> (Linear() ** 2)(torch.tensor([3.0]), torch.tensor([2.0])).item()
        36.0
    """

    def __init__(
        self,
        base: Kernel,
        exponent: float,
        *,
        active_dims: Sequence[int] | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(active_dims=active_dims, name=name)
        check_kernel("Power", base, "base")
        if isinstance(exponent, bool) or not 0 < exponent < float("inf"):
            raise _exceptions.OptionError(f"Power: exponent must be positive, got {exponent!r}.")
        self.base, self.exponent = base, exponent

    @property
    def pure(self) -> bool:  # type: ignore[override]  # a class says it, this one asks its base
        """Whether ``base`` is pure."""
        return self.base.pure

    def start(self, X: Tensor, y: Tensor, variance: Tensor) -> None:
        """Start ``base`` with the root of the variance."""
        self.base.start_part(X, y, variance ** (1.0 / self.exponent))

    def iterate_parts(self, X: Tensor) -> Iterator[tuple[Kernel, Tensor]]:
        """Yield the parts of ``base``."""
        return self.base.iterate_parts(self._select_columns(X))

    def embed(self, X: Tensor) -> Tree:
        """Return the features of ``base``."""
        return self.base.features(X)

    def scalars(self) -> Tree:
        """Return the scalars of ``base``."""
        return self.base.scalars()

    def matrix(self, scalars: Tree, F: Tree, G: Tree | None) -> Tensor:
        """Return the matrix of ``base``, to the power."""
        return self.base.matrix(scalars, F, G) ** self.exponent

    def diagonal(self, scalars: Tree, F: Tree) -> Tensor:
        """Return the diagonal of ``base``, to the power."""
        return self.base.diagonal(scalars, F) ** self.exponent

    def config(self) -> dict[str, Any]:
        """Return options, the exponent and the description of ``base``."""
        return {**super().config(), "exponent": self.exponent, "base": self.base.config()}

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], tensors: Mapping[str, Tensor], modules: Mapping[str, nn.Module]
    ) -> Kernel:
        """Return a power of the kernel that was saved."""
        check_entries(config, {"exponent": NUMBER, "base": PART}, "the kernel Power")
        base = kernel_from_config(config["base"], part_of_state(tensors, "base."), modules)
        return cls(base, config["exponent"], active_dims=config["active_dims"])

    def extra_repr(self) -> str:
        """Return the exponent."""
        return ", ".join(filter(None, [f"exponent={self.exponent:g}", super().extra_repr()]))


def find_term(who: str, kernel: Kernel, name: str) -> Kernel:
    """Return the term of this name of a sum of kernels.

    Raises:
        OptionError: The kernel is no sum, or has no term of this name.
    """
    terms = kernel.kernels() if isinstance(kernel, Sum) and kernel.active_dims is None else [kernel]
    named = {term.part_name: term for term in terms if term.part_name is not None}
    if not named:
        raise _exceptions.OptionError(
            f'{who}: no part of the kernel has a name: RBF(name="trend") + ... gives it one.'
        )
    if name not in named:
        raise _errors.unknown_option(who, "part", name, list(named))
    return named[name]


def has_open_variance(kernel: Kernel) -> bool:
    """Return whether the user has given no variance of a kernel, of its factors, or of its terms."""
    parts = [part for part in kernel.modules() if isinstance(part, Kernel) and hasattr(part, "raw_variance")]
    return all(not part.is_given("variance") for part in parts)
