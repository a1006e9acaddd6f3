"""Kernels: what they share, and how they add and multiply."""

from __future__ import annotations

import abc
import functools
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from lapgrad import _errors
from lapgrad._torch.private import skips_dispatcher
from lapgrad.models import _checks
from lapgrad.models._gp.diagonal import add_to_diagonal
from lapgrad.models._parameters import Parametrised
from lapgrad.models._storage.entries import OPTIONAL_INTEGERS, PARTS, TEXT, check_entries
from lapgrad.models.kernels import _blocks, _gaussian
from lapgrad.models.kernels._blocks import Tree

#: All classes of kernels, those of users included, by name: what files refer to.
_KINDS: dict[str, type[Kernel]] = {}


class Kernel(Parametrised, abc.ABC):
    """A covariance function k(x, z) with hyper-parameters: ``kernel(X)`` and ``kernel(X, Z)`` are matrices.

    Kernels add and multiply: ``RBF() + Linear() * Periodic()``. Hyper-parameters are read and set in their
    own units (``kernel.lengthscale = 0.3``), and learned through their logarithms (``raw_lengthscale``).

    A kernel of your own gives ``embed`` (what it makes of the points, once for all), ``scalars`` (which
    further hyper-parameters enter), and ``matrix`` and ``diagonal`` as functions of these. Where
    ``matrix`` uses tensors from nowhere else, set ``pure = True``: then the matrix takes one buffer, and none
    in backward.

    Args:
        active_dims: The columns of the points that the kernel sees; None: all of them.
    """

    #: Whether ``matrix`` and ``diagonal`` are functions of their arguments alone.
    pure: ClassVar[bool] = False

    def __init__(self, *, active_dims: Sequence[int] | None = None) -> None:
        super().__init__()
        self.active_dims = None if active_dims is None else tuple(int(dim) for dim in active_dims)

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        _KINDS[cls.__name__] = cls

    # What a kernel is.

    def embed(self, X: Tensor) -> Tree:
        """What the kernel needs of the points X (*batch, n, d): a tensor (*batch, n, ·), or tuples of such.

        Default: X itself.
        """
        return X

    def scalars(self) -> Tree:
        """Hyper-parameters, in their own units, that enter after ``embed``: a scalar, or tuples of such.

        Default: none.
        """
        return ()

    @abc.abstractmethod
    def matrix(self, scalars: Tree, F: Tree, G: Tree | None) -> Tensor:
        """K (*batch, n, m) of embedded points; ``G`` None: the same points in rows and columns."""

    @abc.abstractmethod
    def diagonal(self, scalars: Tree, F: Tree) -> Tensor:
        """The diagonal (*batch, n) of ``matrix(scalars, F, None)``."""

    def config(self) -> dict[str, Any]:
        """What the constructor needs besides hyper-parameters, in types that JSON knows."""
        return {"kind": type(self).__name__, "active_dims": self.active_dims}

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], tensors: Mapping[str, Tensor], modules: Mapping[str, nn.Module]
    ) -> Kernel:
        """A kernel of this description.

        Args:
            config: What ``config`` returned.
            tensors: The ``state_dict`` of the kernel, for the shapes of its hyper-parameters.
            modules: Networks that the user has passed in, by name.
        """
        return cls(active_dims=config["active_dims"])

    # What it is used for.

    def forward(self, X: Tensor, Z: Tensor | None = None) -> Tensor:
        """The matrix of k(x_i, z_j).

        Args:
            X: (*batch, n, d), or (n,) for n points of one dimension.
            Z: (*batch, m, d), or (m,); None: X itself, and the result is exactly symmetric.

        Returns:
            (*batch, n, m), in one buffer; backward takes none. It may be a view of less memory than that
            (``Constant``).

        Raises:
            DTypeError, DeviceError: X and Z are not float32 or float64, or not alike.
            ShapeError: X and Z differ in d, or have fewer columns than ``active_dims`` or ARD lengthscales.
        """
        X = self._check_points("X", X)
        if Z is None:
            return _evaluate(self, X, None, None)
        Z = self._check_points("Z", Z)
        _checks.check_same_kind(type(self).__name__, X=X, Z=Z)
        if X.shape[-1] != Z.shape[-1]:
            raise _errors.shapes_do_not_fit(
                type(self).__name__, {"X": X, "Z": Z}, "X and Z must have the same number of columns"
            )
        return _evaluate(self, X, Z, None)

    def in_one_piece(self, X: Tensor, Z: Tensor) -> Tensor:
        """``kernel(X, Z)``, not in blocks: for those who cut the points into chunks themselves."""
        X, Z = self._check_points("X", X), self._check_points("Z", Z)
        return self.matrix(_get_scalars_like(self, X), self.features(X), self.features(Z))

    @torch.no_grad()
    def for_points(self, X: Tensor, Z: Tensor) -> tuple[AbstractContextManager[None], Tensor | None]:
        """A context in which all calls are on X and on rows of Z: what takes a look at them is done once.

        Returns:
            The context; and, for points on a GPU, whether what is assumed in it holds, which is there to be
            looked at later. None: it does.
        """
        near = self.near(X, Z)
        if X.is_cpu or not near:
            return _gaussian.assumed({kernel for kernel, holds in near.items() if holds}), None
        return _gaussian.assumed(set(near)), torch.stack(tuple(near.values())).all()

    def near(self, X: Tensor, Z: Tensor) -> dict[Kernel, Tensor]:
        """Of its parts (or itself) that have a faster way at points near each other: whether these are."""
        return {}

    def diag(self, X: Tensor) -> Tensor:
        """The diagonal of ``kernel(X)``, (*batch, n), without the matrix."""
        X = self._check_points("X", X)
        return self.diagonal(_get_scalars_like(self, X), self.features(X))

    def features(self, X: Tensor) -> Tree:
        """``embed`` of the columns in ``active_dims``."""
        return self.embed(self._select_columns(X))

    def _select_columns(self, X: Tensor) -> Tensor:
        """The columns that the kernel sees."""
        if self.active_dims is None:
            return X
        if any(not -X.shape[-1] <= dim < X.shape[-1] for dim in self.active_dims):
            raise _errors.ShapeError(
                f"{type(self).__name__}: active_dims {self.active_dims} do not fit points of "
                f"{X.shape[-1]} dimensions."
            )
        return X[..., list(self.active_dims)]

    def __add__(self, other: Kernel) -> Sum:
        return Sum(self, other) if isinstance(other, Kernel) else NotImplemented

    def __mul__(self, other: Kernel) -> Product:
        return Product(self, other) if isinstance(other, Kernel) else NotImplemented

    def extra_repr(self) -> str:
        """The hyper-parameters of this kernel (not of its parts), in their own units."""
        own = {name: value for name, value in self.hyperparameters().items() if "." not in name}
        shown = [f"{name}={_format_value(value)}" for name, value in own.items()]
        if self.active_dims is not None:
            shown.append(f"active_dims={self.active_dims}")
        return ", ".join(shown)

    def _check_points(self, name: str, X: Tensor) -> Tensor:
        X = _checks.check_float_tensor(type(self).__name__, X, name)
        if X.dim() == 0:
            raise _errors.ShapeError(f"{type(self).__name__}: {name} must have shape (*batch, n, d) or (n,).")
        return X[:, None] if X.dim() == 1 else X


class _Combination(Kernel):
    """Kernels side by side: embedded points and scalars of all parts, one after the other."""

    def __init__(self, *parts: Kernel, active_dims: Sequence[int] | None = None) -> None:
        super().__init__(active_dims=active_dims)
        if not parts or not all(isinstance(part, Kernel) for part in parts):
            raise _errors.OptionError(f"{type(self).__name__}: at least one kernel is wanted, got {parts!r}.")
        flat: list[Kernel] = []
        for part in parts:
            if isinstance(part, _Combination) and type(part) is type(self) and part.active_dims is None:
                flat.extend(part.kernels())
            else:
                flat.append(part)
        self.parts = nn.ModuleList(flat)

    def kernels(self) -> list[Kernel]:
        """The parts."""
        return [cast(Kernel, part) for part in self.parts]

    @property
    def pure(self) -> bool:  # type: ignore[override]  # a class says it, this one asks its parts
        """Whether all parts are."""
        return all(part.pure for part in self.kernels())

    def near(self, X: Tensor, Z: Tensor) -> dict[Kernel, Tensor]:
        """Of all parts."""
        X, Z = self._select_columns(X), self._select_columns(Z)
        return {kernel: holds for part in self.kernels() for kernel, holds in part.near(X, Z).items()}

    def embed(self, X: Tensor) -> Tree:
        """Those of all parts."""
        return tuple(part.features(X) for part in self.kernels())

    def scalars(self) -> Tree:
        """Those of all parts."""
        return tuple(part.scalars() for part in self.kernels())

    def matrix(self, scalars: Tree, F: Tree, G: Tree | None) -> Tensor:
        """Of the matrices of the parts."""
        columns = [None] * len(self.parts) if G is None else G
        return self._combine(
            part.matrix(scalar, f, g)
            for part, scalar, f, g in zip(self.kernels(), scalars, F, columns, strict=True)
        )

    def diagonal(self, scalars: Tree, F: Tree) -> Tensor:
        """Of the diagonals of the parts."""
        return self._combine(
            part.diagonal(scalar, f) for part, scalar, f in zip(self.kernels(), scalars, F, strict=True)
        )

    @abc.abstractmethod
    def _combine(self, terms: Iterable[Tensor]) -> Tensor: ...

    def config(self) -> dict[str, Any]:
        """With the descriptions of the parts."""
        return {**super().config(), "parts": [part.config() for part in self.kernels()]}

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], tensors: Mapping[str, Tensor], modules: Mapping[str, nn.Module]
    ) -> Kernel:
        """From the descriptions of the parts."""
        check_entries(config, {"parts": PARTS}, f"the kernel {cls.__name__}")
        parts = [
            kernel_from_config(part, part_of_state(tensors, f"parts.{i}."), modules)
            for i, part in enumerate(config["parts"])
        ]
        return cls(*parts, active_dims=config["active_dims"])


class Sum(_Combination):
    """k(x, z) = k_1(x, z) + k_2(x, z) + ...: also written ``k1 + k2``.

    Example:
        >>> from lapgrad.models.kernels import RBF
        >>> kernel = RBF(variance=2.0) + RBF(variance=3.0)
        >>> kernel.diag(torch.zeros(2)).tolist()
        [5.0, 5.0]
    """

    def _combine(self, terms: Iterable[Tensor]) -> Tensor:
        return functools.reduce(torch.add, terms)


class Product(_Combination):
    """k(x, z) = k_1(x, z) k_2(x, z) ...: also written ``k1 * k2``.

    Example:
        >>> from lapgrad.models.kernels import RBF
        >>> kernel = RBF(variance=2.0) * RBF(variance=3.0)
        >>> kernel.diag(torch.zeros(2)).tolist()
        [6.0, 6.0]
    """

    def _combine(self, terms: Iterable[Tensor]) -> Tensor:
        return functools.reduce(torch.mul, terms)


def covariance(kernel: Kernel, X: Tensor, noise_var: Tensor, *, lower_only: bool = False) -> Tensor:
    """A = K + noise, of observations at X: in one buffer that nothing else refers to.

    Args:
        kernel: Gives K = kernel(X).
        X: (*batch, n, d).
        noise_var: Added to the diagonal: a scalar, or (*batch, n).
        lower_only: Entries above the diagonal may be anything: for functions that read the lower triangle,
            and whose gradient is symmetric, such as ``potrf`` and ``fused.mvn_nll``.

    Returns:
        A (*batch, n, n), exactly symmetric. It may be overwritten.
    """
    return _evaluate(kernel, X, None, noise_var, lower_only)


def kernel_from_config(
    config: Mapping[str, Any], tensors: Mapping[str, Tensor], modules: Mapping[str, nn.Module]
) -> Kernel:
    """The kernel that ``config`` describes; hyper-parameters take their shapes from ``tensors``, no values.

    Args:
        config: What ``Kernel.config`` returned.
        tensors: The ``state_dict`` of the kernel.
        modules: Networks that the user has passed in, by name.

    Raises:
        FileFormatError: No kernel of that name is known.
    """
    check_entries(config, {"kind": TEXT}, "a kernel")
    if "active_dims" in config:
        check_entries(config, {"active_dims": OPTIONAL_INTEGERS}, f"the kernel {config['kind']}")
    kind = _KINDS.get(config["kind"])
    if kind is None:
        raise _errors.FileFormatError(
            f"load: the kernel {config['kind']} is not known. Import the module that defines it first."
        )
    return kind.from_config(config, tensors, modules)


def part_of_state(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The entries of a ``state_dict`` whose names start with ``prefix``, without it."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _evaluate(
    kernel: Kernel, X: Tensor, Z: Tensor | None, noise_var: Tensor | None, lower_only: bool = False
) -> Tensor:
    scalars, F = _get_scalars_like(kernel, X), kernel.features(X)
    G = None if Z is None else kernel.features(Z)
    rows, columns = X.shape[-2], (X if Z is None else Z).shape[-2]
    in_blocks = kernel.pure and (noise_var is not None or _blocks.is_worthwhile(rows, columns))
    if in_blocks and skips_dispatcher(_blocks.flatten_tree((scalars, F, () if G is None else G))):
        return _blocks.evaluate_in_blocks(kernel.matrix, scalars, F, G, noise_var, lower_only)
    K = kernel.matrix(scalars, F, G)
    if noise_var is None:
        return K
    return add_to_diagonal(K, noise_var)


def _get_scalars_like(kernel: Kernel, X: Tensor) -> Tree:
    return _blocks.map_tree(lambda scalar: scalar.to(X), kernel.scalars())


def _format_value(value: Tensor) -> str:
    return f"{value.item():.4g}" if not value.dim() else f"[{', '.join(f'{v:.4g}' for v in value.tolist())}]"
