"""Kernels as pure functions of their inputs and parameters, whatever they come as."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from lapgrad import _errors

_Result = TypeVar("_Result")

#: Parameters are put into a module for all threads: one at a time, or the last one out would leave those of
#: another behind.
_in_turn: weakref.WeakKeyDictionary[nn.Module, AbstractContextManager[Any]]
_in_turn = weakref.WeakKeyDictionary()
_one_at_a_time = threading.Lock()


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


def kernel_function(operator: str, kernel: KernelFunction | nn.Module) -> KernelFunction:
    """``kernel`` itself, or a module as a pure function of its parameters."""
    if isinstance(kernel, KernelFunction):
        return kernel
    if not isinstance(kernel, nn.Module) or not callable(getattr(kernel, "diag", None)):
        raise _errors.OptionError(
            f"{operator}: kernel must be a KernelFunction, or a torch.nn.Module with forward(A, B) and "
            f"diag(A), got {type(kernel).__name__}."
        )
    return of_module(kernel)


class _Methods(nn.Module):
    """``functional_call`` runs a module's forward: this one's is anything that uses the kernel."""

    def __init__(self, kernel: nn.Module) -> None:
        super().__init__()
        self.kernel = kernel

    def forward(self, use: Callable[[Any], Any]) -> Any:
        return use(self.kernel)


class _OfModule:
    """``matrix`` of a module. Parameters are put in for each call, or once for all of ``with_parameters``.

    A kernel that would make its matrix in blocks may have a method ``in_one_piece``: here chunks are blocks.
    One that takes a look at the points may have ``for_points(A, B)``: a context for calls on rows of these.
    """

    def __init__(self, kernel: nn.Module) -> None:
        self._methods = _Methods(kernel)
        named, self._buffers = dict(self._methods.named_parameters()), dict(self._methods.named_buffers())
        self._names, self.parameters = tuple(named), tuple(named.values())
        self._of_chunk = "in_one_piece" if hasattr(kernel, "in_one_piece") else "forward"
        self._looks = hasattr(kernel, "for_points")
        self._put_in: tuple[Tensor, ...] | None = None

    def __call__(self, A: Tensor, B: Tensor, *parameters: Tensor) -> Tensor:
        def matrix(kernel: Any) -> Any:
            # One argument is the symmetric matrix, which kernels make symmetric to the last bit.
            return kernel(A) if B is A else getattr(kernel, self._of_chunk)(A, B)

        result: Tensor = self._used(matrix, parameters, A)
        return result

    def diagonal(self, A: Tensor, *parameters: Tensor) -> Tensor:
        result: Tensor = self._used(lambda kernel: kernel.diag(A), parameters, A)
        return result

    def for_points(self, A: Tensor, B: Tensor, *parameters: Tensor) -> Any:
        if not self._looks:
            return contextlib.nullcontext(), None
        return self._used(lambda kernel: kernel.for_points(A, B.to(A)), parameters, A)

    def with_parameters(
        self, parameters: Sequence[Tensor], like: Tensor, body: Callable[[], _Result]
    ) -> _Result:
        """``body()``; calls in it with these parameters, and points of the kind of ``like``, cost less."""
        held = tuple(parameters)

        def run(_: Any) -> _Result:
            before, self._put_in = self._put_in, held
            try:
                return body()
            finally:
                self._put_in = before

        result: _Result = self._used(run, held, like)
        return result

    def _used(self, use: Callable[[Any], Any], parameters: Sequence[Tensor], like: Tensor) -> Any:
        held = self._put_in
        if held is not None and all(one is other for one, other in zip(held, parameters, strict=True)):
            return use(self._methods.kernel)
        tensors = dict(zip(self._names, parameters, strict=True))
        for name, value in self._buffers.items():
            tensors[name] = value.to(like) if value.is_floating_point() else value
        with _turn_of(self._methods.kernel):
            return torch.func.functional_call(self._methods, tensors, (use,))


def _turn_of(kernel: nn.Module) -> AbstractContextManager[Any]:
    if is_compiling():  # threads are no matter of what is traced
        return contextlib.nullcontext()
    with _one_at_a_time:
        return _in_turn.setdefault(kernel, threading.RLock())


def of_module(kernel: nn.Module) -> KernelFunction:
    """The kernel as a function of its parameters; its buffers take their dtype."""
    matrix = _OfModule(kernel)
    return KernelFunction(matrix, matrix.diagonal, matrix.parameters)


def with_parameters(kernel: KernelFunction, like: Tensor, body: Callable[[], _Result]) -> _Result:
    """``body()``, in which ``kernel`` is called with its own parameters many times."""
    if isinstance(kernel.matrix, _OfModule):
        return kernel.matrix.with_parameters(kernel.parameters, like, body)
    return body()


def for_points(
    kernel: KernelFunction, Z: Tensor, X: Tensor
) -> tuple[AbstractContextManager[None], Tensor | None]:
    """A context in which ``kernel.matrix`` is called with Z and rows of X, and whether it may be used.

    Z is of the kind that the kernel is called with, X need not be. The second result is None, or a number on
    a GPU that is to be looked at in the end.
    """
    known = getattr(kernel.matrix, "for_points", None)
    if known is None:
        return contextlib.nullcontext(), None
    found: tuple[AbstractContextManager[None], Tensor | None] = known(Z, X, *kernel.parameters)
    return found
