"""Kernels as pure functions of their inputs and parameters, made from a module or given by the user."""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from lapgrad import _exceptions
from lapgrad.fused._kernel_matrix import Formula, has_formulas

_Result = TypeVar("_Result")

#: One lock per module. ``torch.func.functional_call`` puts parameters into the module itself, where every
#: thread sees them: two threads at once would leave one's parameters in the module for good. The table is
#: global because each call with a module makes its own ``_ModuleMatrix``.
_locks: weakref.WeakKeyDictionary[nn.Module, AbstractContextManager[Any]] = weakref.WeakKeyDictionary()
_locks_guard = threading.Lock()


class KernelFunction(NamedTuple):
    """A kernel as pure functions of inputs and parameters: what ``fused.sgp_nll`` differentiates.

    Attributes:
        matrix: ``matrix(A, B, *parameters)``, (n, m) for A (n, d) and B (m, d), written in differentiable
            torch operations that follow the dtype of what they get: they are called in float64.
        diagonal: ``diagonal(A, *parameters)``, (n,): the diagonal of ``matrix(A, A, *parameters)``.
        parameters: The tensors that gradients are wanted for.

    Example:
        >>> import torch, lapgrad
        >>> def matrix(A, B, lengthscale):
        ...     return torch.exp(-0.5 * torch.cdist(A / lengthscale, B / lengthscale).square())
        >>> def diagonal(A, lengthscale):
        ...     return A.new_ones(len(A))
        >>> kernel = lapgrad.fused.KernelFunction(matrix, diagonal, (torch.tensor(2.0),))
        >>> kernel.diagonal(torch.zeros(2, 1), *kernel.parameters)
        tensor([1., 1.])
    """

    matrix: Callable[..., Tensor]
    diagonal: Callable[..., Tensor]
    parameters: tuple[Tensor, ...] = ()


@runtime_checkable
class ChunkedKernel(Protocol):
    """A kernel module that is evaluated faster when it knows that the caller cuts the points into chunks."""

    def find_shortcuts(self, X: Tensor, Z: Tensor) -> tuple[object, Tensor | None]:
        """Find out once which faster formulas are precise enough for X and all rows of Z.

        Returns:
            An argument for ``evaluate_chunk``; and None (it may be used), or a flag on a GPU, to be read
            later, whether results with it are right.
        """

    def evaluate_chunk(self, X: Tensor, Z: Tensor | None, shortcuts: object) -> Tensor:
        """Return the matrix of X and some rows of Z, which the kernel must not cut into blocks itself.

        Z None: the matrix of X with itself, exactly symmetric. ``shortcuts``: None, or what
        ``find_shortcuts`` returned.
        """


class PointFormulas(NamedTuple):
    """The formula of a kernel with the features of two sets of points, recorded for autograd.

    Attributes:
        Z: With the features of Z.
        X: With the features of X.
        variances: (n,), the kernel's diagonal at X.
        inputs: X itself, (n, d).
    """

    Z: Formula
    X: Formula
    variances: Tensor
    inputs: Tensor


@runtime_checkable
class KernelWithFormula(Protocol):
    """A kernel module whose matrices a kernel of the device may compute."""

    def find_formulas(self, Z: Tensor, X: Tensor) -> tuple[Formula, Formula, Tensor] | None:
        """Its formula with the features of Z, with those of X, and its diagonal at X; None: there is none."""


@runtime_checkable
class PreparableMatrix(Protocol):
    """A ``KernelFunction.matrix`` that finds out once what depends on all of the points."""

    def prepare_points(
        self, A: Tensor, B: Tensor, *parameters: Tensor
    ) -> tuple[Callable[..., Tensor], Tensor | None]:
        """The matrix function for A and rows of B; and None, or a flag: whether its results are right."""


def as_kernel_function(operator: str, kernel: KernelFunction | nn.Module) -> KernelFunction:
    """``kernel`` itself, or a module as a pure function of its parameters."""
    if isinstance(kernel, KernelFunction):
        return kernel
    if not isinstance(kernel, nn.Module) or not callable(getattr(kernel, "diag", None)):
        raise _exceptions.OptionError(
            f"{operator}: kernel must be a KernelFunction, or a torch.nn.Module with forward(A, B) and "
            f"diag(A), got {type(kernel).__name__}."
        )
    return wrap_module(kernel)


class _KernelCaller(nn.Module):
    """A module whose forward runs any function on the kernel: ``functional_call`` can run a forward only."""

    def __init__(self, kernel: nn.Module) -> None:
        super().__init__()
        self.kernel = kernel

    def forward(self, use: Callable[[Any], Any]) -> Any:
        return use(self.kernel)


class _ModuleMatrix:
    """``KernelFunction.matrix`` of a module.

    Parameters are put into the module for each call, or once for all calls inside ``call_with_parameters``.
    """

    def __init__(self, kernel: nn.Module) -> None:
        self._caller = _KernelCaller(kernel)
        named, self._buffers = dict(self._caller.named_parameters()), dict(self._caller.named_buffers())
        self._names, self.parameters = tuple(named), tuple(named.values())
        self._is_chunked = isinstance(kernel, ChunkedKernel)
        self._current: tuple[Tensor, ...] | None = None

    def __call__(self, A: Tensor, B: Tensor, *parameters: Tensor) -> Tensor:
        return self._evaluate(None, A, B, *parameters)

    def diagonal(self, A: Tensor, *parameters: Tensor) -> Tensor:
        result: Tensor = self._call(lambda kernel: kernel.diag(A), parameters, A)
        return result

    def prepare_points(
        self, A: Tensor, B: Tensor, *parameters: Tensor
    ) -> tuple[Callable[..., Tensor], Tensor | None]:
        if not self._is_chunked:
            return self, None
        shortcuts, flag = self._call(lambda kernel: kernel.find_shortcuts(A, B.to(A)), parameters, A)
        return functools.partial(self._evaluate, shortcuts), flag

    def find_formulas(self, Z: Tensor, X: Tensor, *parameters: Tensor) -> PointFormulas | None:
        """Return the formula of the kernel, with the features of Z and X; None: there is none."""
        kernel = self._caller.kernel
        if not isinstance(kernel, KernelWithFormula):
            return None
        found = self._call(lambda kernel: kernel.find_formulas(Z, X), parameters, Z)
        if found is None:
            return None
        at_Z, at_X, variances = found
        return PointFormulas(at_Z, at_X, variances, X)

    def _evaluate(self, shortcuts: object, A: Tensor, B: Tensor, *parameters: Tensor) -> Tensor:
        # Kernels make the matrix of points with themselves symmetric to the last bit.
        other = None if B is A else B

        def compute(kernel: Any) -> Any:
            if self._is_chunked:
                return kernel.evaluate_chunk(A, other, shortcuts)
            return kernel(A) if other is None else kernel(A, other)

        result: Tensor = self._call(compute, parameters, A)
        return result

    def call_with_parameters(
        self, parameters: Sequence[Tensor], like: Tensor, body: Callable[[], _Result]
    ) -> _Result:
        """Return ``body()``, with the parameters put into the module once for all calls inside of it."""
        held = tuple(parameters)

        def run(_: Any) -> _Result:
            before, self._current = self._current, held
            try:
                return body()
            finally:
                self._current = before

        result: _Result = self._call(run, held, like)
        return result

    def _call(self, use: Callable[[Any], Any], parameters: Sequence[Tensor], like: Tensor) -> Any:
        """``use(kernel)`` with these parameters, and with buffers of the dtype and device of ``like``."""
        held = self._current
        if held is not None and all(one is other for one, other in zip(held, parameters, strict=True)):
            return use(self._caller.kernel)
        tensors = dict(zip(self._names, parameters, strict=True))
        for name, value in self._buffers.items():
            tensors[name] = value.to(like) if value.is_floating_point() else value
        with _get_lock(self._caller.kernel):
            return torch.func.functional_call(self._caller, tensors, (use,))


def _get_lock(kernel: nn.Module) -> AbstractContextManager[Any]:
    if is_compiling():  # a lock cannot be traced, and a trace runs in one thread
        return contextlib.nullcontext()
    with _locks_guard:
        return _locks.setdefault(kernel, threading.RLock())


def wrap_module(kernel: nn.Module) -> KernelFunction:
    """Return the kernel as a function of its parameters; its buffers take their dtype."""
    matrix = _ModuleMatrix(kernel)
    return KernelFunction(matrix, matrix.diagonal, matrix.parameters)


def call_with_parameters(kernel: KernelFunction, like: Tensor, body: Callable[[], _Result]) -> _Result:
    """``body()``, in which ``kernel`` is called with its own parameters many times."""
    if isinstance(kernel.matrix, _ModuleMatrix):
        return kernel.matrix.call_with_parameters(kernel.parameters, like, body)
    return body()


def find_formulas(
    kernel: KernelFunction, Z: Tensor, X: Tensor, *, needs_inputs: bool
) -> PointFormulas | None:
    """The formula of the kernel at Z and X in the dtype of Z, if the device has a kernel for it, else None.

    ``needs_inputs``: gradients are wanted for X.
    """
    if not isinstance(kernel.matrix, _ModuleMatrix) or not has_formulas(Z):
        return None
    with torch.enable_grad():
        inputs = X.detach().to(Z.dtype).requires_grad_(needs_inputs)
        return kernel.matrix.find_formulas(Z, inputs, *kernel.parameters)


def prepare_points(kernel: KernelFunction, Z: Tensor, X: Tensor) -> tuple[KernelFunction, Tensor | None]:
    """The kernel for matrices of Z and rows of X; and None, or a flag on a GPU: whether it may be used.

    Z has the dtype that the kernel is called with, X may have another. The flag is to be read at the end.
    """
    matrix: object = kernel.matrix
    if isinstance(matrix, PreparableMatrix):
        prepared, flag = matrix.prepare_points(Z, X, *kernel.parameters)
        return KernelFunction(prepared, kernel.diagonal, kernel.parameters), flag
    return kernel, None
