"""The base class of kernels."""

from __future__ import annotations

import abc
import functools
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lapgrad import _errors, _exceptions
from lapgrad._torch.private import skips_dispatcher
from lapgrad.fused import _kernel_matrix
from lapgrad.fused._kernel_matrix import Formula
from lapgrad.models import _checks
from lapgrad.models._gp.diagonal import add_to_diagonal
from lapgrad.models._parameters import ParametrisedModule, get_names_not_given
from lapgrad.models._storage.entries import OPTIONAL_INTEGERS, TEXT, check_entries
from lapgrad.models.kernels import _blocks
from lapgrad.models.kernels._blocks import Tree

#: All classes of kernels by name, including those of users: files refer to them by name.
_KINDS: dict[str, type[Kernel]] = {}
_NONE: frozenset[Kernel] = frozenset()


class Kernel(ParametrisedModule, abc.ABC):
    """A covariance function k(x, z) with hyper-parameters: ``kernel(X)`` and ``kernel(X, Z)`` are matrices.

    Kernels add and multiply: ``RBF() + Linear() * Periodic()``. Hyper-parameters are read and set in their
    own units (``kernel.lengthscale = 0.3``), and learned through their logarithms (``raw_lengthscale``).

    To write your own kernel, implement ``embed`` (a transformation of the points), ``scalars`` (the other
    hyper-parameters), and ``matrix`` and ``diagonal`` as functions of both. If ``matrix`` uses no other
    tensors, set ``pure = True``: the kernel matrix then takes one buffer forward, and none backward.

    A hyper-parameter that is not given starts from the data of the model that the kernel becomes part of.
    Until then it has a neutral value, usually 1.

    Numbers stand for ``Constant``: ``2.0 * RBF() + 1.0`` is ``Constant(2.0) * RBF() + Constant(1.0)``, and
    ``RBF() ** 2`` is ``Power(RBF(), 2)``.

    Args:
        active_dims: The columns of the points that the kernel uses; None: all of them.
        name: A name of this part of a sum or product: ``kernel["trend"]`` finds it, and its hyper-parameters
            are listed as ``kernel.trend.lengthscale``.
    """

    #: Whether ``matrix`` and ``diagonal`` are functions of their arguments alone.
    pure: ClassVar[bool] = False
    #: The name of the formula of ``matrix`` in kernels for GPUs; see ``express``. A subclass does not inherit
    #: it, because it may have a matrix of its own.
    formula: ClassVar[str | None] = None

    def __init__(self, *, active_dims: Sequence[int] | None = None, name: str | None = None) -> None:
        super().__init__()
        if isinstance(active_dims, int | str):
            raise _exceptions.OptionError(
                f"{type(self).__name__}: active_dims must be a list of columns, got {active_dims!r}."
            )
        self.active_dims = None if active_dims is None else tuple(int(dim) for dim in active_dims)
        if name is not None and not (isinstance(name, str) and name.isidentifier() and name != "parts"):
            raise _exceptions.OptionError(
                f"{type(self).__name__}: name must be letters, digits and underscores, got {name!r}."
            )
        self.name = name

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        _KINDS[cls.__name__] = cls

    # To be implemented by subclasses.

    def embed(self, X: Tensor) -> Tree:
        """Return features of the points X (*batch, n, d): a tensor (*batch, n, ·), or a tuple of such trees.

        Default: X itself.
        """
        return X

    def scalars(self) -> Tree:
        """Return the hyper-parameters that ``matrix`` needs, in their own units: a scalar, or a nested tuple.

        Default: none.
        """
        return ()

    @abc.abstractmethod
    def matrix(self, scalars: Tree, F: Tree, G: Tree | None) -> Tensor:
        """Return K (*batch, n, m) of embedded points; ``G`` None: the same points in rows and columns."""

    @abc.abstractmethod
    def diagonal(self, scalars: Tree, F: Tree) -> Tensor:
        """Return the diagonal (*batch, n) of ``matrix(scalars, F, None)``."""

    def express(self, scalars: Tree, F: Tree) -> Formula | None:
        """Return the formula by which a GPU computes ``matrix(scalars, F, ·)``; None: there is none.

        Only classes that say ``formula`` themselves have one.
        """
        name = vars(type(self)).get("formula")
        return None if name is None else self._fill_formula(name, scalars, F)

    def _fill_formula(self, name: str, scalars: Tree, F: Tree) -> Formula | None:
        """Return the formula of this name with its arguments: all columns of F, and all scalars."""
        return Formula(f"{name}<{F.shape[-1]}>", tuple(_blocks.flatten_tree(scalars)), (F,))

    def config(self) -> dict[str, Any]:
        """Return the arguments of the constructor without hyper-parameters, in types that JSON knows."""
        named = {} if self.name is None else {"name": self.name}
        return {"kind": type(self).__name__, "active_dims": self.active_dims, **named}

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], tensors: Mapping[str, Tensor], modules: Mapping[str, nn.Module]
    ) -> Kernel:
        """Return a kernel of this description.

        Args:
            config: What ``config`` returned.
            tensors: The ``state_dict`` of the kernel, for the shapes of its hyper-parameters.
            modules: Networks that the user has passed in, by name.
        """
        return cls(active_dims=config["active_dims"])

    def start(self, X: Tensor, y: Tensor, variance: Tensor) -> None:
        """Set the hyper-parameters of this kernel that were not given (``is_given``) to values that fit data.

        Default: ``variance``, if there is one.

        Args:
            X: (n, d), the points, with the columns in ``active_dims`` only.
            y: (n, k), what the functions look like there: their mean is about 0.
            variance: What k(x, x) should be about, a scalar.
        """
        if not self.is_given("variance"):
            self.variance = variance

    # For users of kernels.

    def is_given(self, name: str) -> bool:
        """Return whether a hyper-parameter of this kernel has a value from the user, or from data."""
        return name not in get_names_not_given(self)

    @torch.no_grad()
    def start_from_data(self, X: Tensor, y: Tensor) -> None:
        """Set all hyper-parameters that were not given to values that fit the data. Models call this.

        Args:
            X: (n, d) or (n,).
            y: (n,) or (n, k), shifted to a mean of about 0.

        Example:
            >>> import torch
            >>> from lapgrad.models.kernels import RBF
            >>> kernel, x = RBF(), 1000.0 * torch.arange(5.0)
            >>> kernel.start_from_data(x, torch.sin(x))
            >>> kernel.lengthscale.item()
            1414.2...
        """
        X = self._check_points("X", X)
        y = y[:, None] if y.dim() == 1 else y
        square = y.square().mean()
        self.start_part(X, y, square if bool(square > 0) else torch.ones_like(square))

    def start_part(self, X: Tensor, y: Tensor, variance: Tensor) -> None:
        """Call ``start`` with the columns in ``active_dims``: for kernels that start their parts."""
        self.start(self._select_columns(X), y, variance)
        get_names_not_given(self).clear()

    def iterate_parts(self, X: Tensor) -> Iterator[tuple[Kernel, Tensor]]:
        """Yield the parts that a kernel of points X (n, d) consists of, each with the columns that it uses.

        Default: the kernel itself.
        """
        yield self, self._select_columns(X)

    def __getitem__(self, name: str) -> Kernel:
        """Return the part of this name.

        Raises:
            OptionError: There is no part of this name.
        """
        named = {
            part.part_name: part
            for part in self.modules()
            if isinstance(part, Kernel) and part.part_name is not None
        }
        if name not in named:
            raise _errors.unknown_option(type(self).__name__, "name of a part", name, list(named))
        return named[name]

    @property
    def part_name(self) -> str | None:
        """The name of this kernel as a part of another one."""
        return self.name

    def forward(self, X: Tensor, Z: Tensor | None = None) -> Tensor:
        """Return the matrix of k(x_i, z_j).

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

    def evaluate_chunk(self, X: Tensor, Z: Tensor | None, shortcuts: object = None) -> Tensor:
        """Return ``kernel(X, Z)`` without cutting it into blocks: for callers that cut the points themselves.

        Args:
            X: (n, d) or (n,).
            Z: (m, d) or (m,); None: X itself, and the result is exactly symmetric (and cut into blocks).
            shortcuts: From ``find_shortcuts``, for X and rows of Z; None: the points are checked here.
        """
        near = shortcuts if isinstance(shortcuts, frozenset) else _NONE
        X = self._check_points("X", X)
        if Z is None:
            return _evaluate(self, X, None, None, near=near)
        Z = self._check_points("Z", Z)
        scalars, F, G = get_scalars_like(self, X), self.features(X), self.features(Z)
        if find_formula(self, X, scalars, F) is not None:
            return _blocks.evaluate_in_blocks(self.matrix, scalars, F, G, express=self.express)
        return self.evaluate_matrix(scalars, F, G, near)

    @torch.no_grad()
    def find_shortcuts(self, X: Tensor, Z: Tensor) -> tuple[object, Tensor | None]:
        """Find out once which parts may use a formula for points near each other, for X and all rows of Z.

        Returns:
            The argument ``shortcuts`` of ``evaluate_chunk``. And None, or on a GPU a flag that the caller
            reads later: whether the points are indeed near each other.
        """
        near = self.compare_points(X, Z)
        if X.is_cpu or not near:
            return frozenset(kernel for kernel, is_near in near.items() if is_near), None
        return frozenset(near), torch.stack(tuple(near.values())).all()

    def find_formulas(self, Z: Tensor, X: Tensor) -> tuple[Formula, Formula, Tensor] | None:
        """Return the formula of this kernel at Z and at X, and its diagonal at X; None: no device has it.

        For callers that evaluate many matrices of the same points: ``fused.sgp_nll``.
        """
        scalars, F = get_scalars_like(self, Z), self.features(Z)
        formula = find_formula(self, Z, scalars, F)
        if formula is None:
            return None
        G = self.features(X)
        of_columns = self.express(scalars, G)
        return None if of_columns is None else (formula, of_columns, self.diagonal(scalars, G))

    def compare_points(self, X: Tensor, Z: Tensor) -> dict[Kernel, Tensor]:
        """Return whether points are near each other, for each part that has a faster formula in that case."""
        return {}

    def evaluate_matrix(self, scalars: Tree, F: Tree, G: Tree | None, near: Set[Kernel]) -> Tensor:
        """Return ``matrix(scalars, F, G)``; the points of kernels in ``near`` are known to be close."""
        return self.matrix(scalars, F, G)

    def keeps_nothing(self, scalars: Tree, F: Tree, G: Tree | None) -> bool:
        """Return whether ``matrix`` keeps nothing for its gradient, so that blocks would save no memory."""
        return False

    def diag(self, X: Tensor) -> Tensor:
        """Return the diagonal of ``kernel(X)``, (*batch, n), without computing the matrix."""
        X = self._check_points("X", X)
        return self.diagonal(get_scalars_like(self, X), self.features(X))

    def features(self, X: Tensor) -> Tree:
        """Return ``embed`` of the columns in ``active_dims``."""
        return self.embed(self._select_columns(X))

    def _select_columns(self, X: Tensor) -> Tensor:
        """Return the columns of X in ``active_dims``."""
        if self.active_dims is None:
            return X
        if any(not -X.shape[-1] <= dim < X.shape[-1] for dim in self.active_dims):
            raise _exceptions.ShapeError(
                f"{type(self).__name__}: active_dims {self.active_dims} do not fit points of "
                f"{X.shape[-1]} dimensions."
            )
        return X[..., list(self.active_dims)]

    def __add__(self, other: Kernel | float) -> Kernel:
        return self if _is_zero(other) else _combine_kernels("Sum", self, other)

    def __radd__(self, other: float) -> Kernel:
        return self if _is_zero(other) else _combine_kernels("Sum", other, self)  # ``sum`` begins with 0

    def __mul__(self, other: Kernel | float) -> Kernel:
        return _combine_kernels("Product", self, other)

    def __rmul__(self, other: float) -> Kernel:
        return _combine_kernels("Product", other, self)

    def __pow__(self, exponent: float) -> Kernel:
        if isinstance(exponent, bool) or not isinstance(exponent, int | float):
            return NotImplemented
        return _make_kernel("Power", self, exponent)

    def extra_repr(self) -> str:
        """Return the hyper-parameters of this kernel (not of its parts), in their own units."""
        own = {name: value for name, value in self.hyperparameters().items() if "." not in name}
        shown = [f"{name}={_format_value(value)}" for name, value in own.items()]
        if self.active_dims is not None:
            shown.append(f"active_dims={self.active_dims}")
        if self.part_name is not None:
            shown.append(f"name={self.part_name!r}")
        return ", ".join(shown)

    def _check_points(self, name: str, X: Tensor) -> Tensor:
        X = _checks.check_float_tensor(type(self).__name__, X, name)
        if X.dim() == 0:
            raise _exceptions.ShapeError(
                f"{type(self).__name__}: {name} must have shape (*batch, n, d) or (n,)."
            )
        return X[:, None] if X.dim() == 1 else X


def _convert_to_kernel(value: object) -> Kernel | None:
    """Return a kernel, or the constant kernel of a number; None if it is neither."""
    if isinstance(value, Kernel):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return _make_kernel("Constant", value)


def _combine_kernels(kind: str, one: object, other: object) -> Kernel:
    """Return the sum or product of two kernels or numbers; NotImplemented if one is neither."""
    parts = [_convert_to_kernel(part) for part in (one, other)]
    return NotImplemented if None in parts else _make_kernel(kind, *parts)


def _make_kernel(kind: str, *arguments: object) -> Kernel:
    """Return a kernel of a class that is looked up by name, because its file imports this one."""
    make: Any = _KINDS[kind]
    made: Kernel = make(*arguments)
    return made


def _is_zero(value: object) -> bool:
    return isinstance(value, int | float) and value == 0


def covariance(kernel: Kernel, X: Tensor, noise_var: Tensor, *, lower_only: bool = False) -> Tensor:
    """Return A = K + noise, the covariance of observations at X, in a buffer of its own.

    Args:
        kernel: Gives K = kernel(X).
        X: (*batch, n, d).
        noise_var: Added to the diagonal: a scalar, or (*batch, n).
        lower_only: Leave entries above the diagonal undefined: for functions that read the lower triangle
            only and have a symmetric gradient, such as ``potrf`` and ``fused.mvn_nll``.

    Returns:
        A (*batch, n, n), exactly symmetric. It may be overwritten.
    """
    return _evaluate(kernel, X, None, noise_var, lower_only)


def check_kernel(who: str, kernel: object, name: str = "kernel") -> None:
    """Raise an OptionError if an argument is not a kernel."""
    if not isinstance(kernel, Kernel):
        raise _exceptions.OptionError(f"{who}: {name} must be a Kernel, got {_checks.describe_kind(kernel)}.")


def kernel_from_config(
    config: Mapping[str, Any], tensors: Mapping[str, Tensor], modules: Mapping[str, nn.Module]
) -> Kernel:
    """Return the kernel that ``config`` describes; only the shapes of ``tensors`` matter, not their values.

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
        raise _exceptions.FileFormatError(
            f"load: the kernel {config['kind']} is not known. Import the module that defines it first."
        )
    kernel = kind.from_config(config, tensors, modules)
    if "name" in config:
        check_entries(config, {"name": TEXT}, f"the kernel {config['kind']}")
        kernel.name = config["name"]
    # The values are in the file, so nothing has to start from the data.
    for part in kernel.modules():
        get_names_not_given(part).clear()
    return kernel


def part_of_state(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the entries of a ``state_dict`` whose names start with ``prefix``, without the prefix.

    For ``from_config`` of classes that hold kernels: a part is described by the entries that belong to it.
    """
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _evaluate(
    kernel: Kernel,
    X: Tensor,
    Z: Tensor | None,
    noise_var: Tensor | None,
    lower_only: bool = False,
    near: Set[Kernel] = _NONE,
) -> Tensor:
    """Return kernel(X, Z) with ``noise_var`` added to the diagonal, in blocks where that saves memory."""
    scalars, F = get_scalars_like(kernel, X), kernel.features(X)
    G = None if Z is None else kernel.features(Z)
    rows, columns = X.shape[-2], (X if Z is None else Z).shape[-2]
    if find_formula(kernel, X, scalars, F) is not None:
        return _blocks.evaluate_in_blocks(
            kernel.matrix, scalars, F, G, noise_var, lower_only, express=kernel.express
        )
    matrix = functools.partial(kernel.evaluate_matrix, near=near) if near else kernel.matrix
    # A matrix of one block takes less time if what its gradient needs is kept.
    in_blocks = kernel.pure and _blocks.is_worthwhile(X.shape[:-2].numel() * rows, columns)
    in_blocks = in_blocks and not kernel.keeps_nothing(scalars, F, G)
    if in_blocks and skips_dispatcher(_blocks.flatten_tree((scalars, F, () if G is None else G))):
        return _blocks.evaluate_in_blocks(matrix, scalars, F, G, noise_var, lower_only)
    K = matrix(scalars, F, G)
    return K if noise_var is None else add_to_diagonal(K, noise_var)


def find_formula(kernel: Kernel, X: Tensor, scalars: Tree, F: Tree) -> Formula | None:
    """Return the formula of a kernel at X (n, d), if a kernel of the device of X serves it, else None."""
    if X.dim() != 2 or not skips_dispatcher((X,)) or not _kernel_matrix.has_formulas(X):
        return None
    formula = kernel.express(scalars, F)
    if formula is None or not skips_dispatcher(formula.tensors) or not _kernel_matrix.serves(formula, X):
        return None
    return formula


def get_scalars_like(kernel: Kernel, X: Tensor) -> Tree:
    """Return the scalars of a kernel in the dtype and on the device of X."""
    return _blocks.map_tree(lambda scalar: scalar.to(X), kernel.scalars())


def _format_value(value: Tensor) -> str:
    return f"{value.item():.4g}" if not value.dim() else f"[{', '.join(f'{v:.4g}' for v in value.tolist())}]"
