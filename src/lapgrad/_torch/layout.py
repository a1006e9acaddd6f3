"""Checks of the arguments of operators, and broadcasting of their leading dimensions.

The checks run on every call, so valid arguments cost a few comparisons only. The error message is worked out
only after a comparison has failed.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from lapgrad import _errors, _exceptions
from lapgrad._errors import LARGEST_DIMENSION
from lapgrad._torch.pages import use_huge_pages

_FLOATS = frozenset((torch.float32, torch.float64))
_HALVES = frozenset((torch.float16, torch.bfloat16))
#: Types of scale factors; tracers have their own.
_NUMBERS = (numbers.Real, torch.SymFloat, torch.SymInt)
#: Types of sizes and positions; NumPy's integers count as ``Integral``.
_INTEGERS = (numbers.Integral, torch.SymInt, Tensor)


def check_matrix(operator: str, argument: str, A: Tensor) -> Tensor:
    """``A`` of shape (*batch, m, n), float32 or float64; under autocast a half precision ``A`` as float32."""
    try:
        if A.dtype in _FLOATS:
            shape = A.shape
            # While compiling, the comparison would become a guard on a dynamic size.
            if len(shape) >= 2 and (
                is_compiling() or (shape[-1] <= LARGEST_DIMENSION and shape[-2] <= LARGEST_DIMENSION)
            ):
                return A
    except AttributeError:
        pass
    A = _check_float_tensor(operator, argument, A)
    if A.dim() < 2:
        raise _errors.not_a_matrix(operator, argument, A.shape)
    if not is_compiling() and max(A.shape[-2:]) > LARGEST_DIMENSION:
        raise _errors.too_large(operator, argument, A.shape)
    return A


def check_square_matrix(operator: str, argument: str, A: Tensor) -> Tensor:
    """``A`` of shape (*batch, n, n), float32 or float64; under autocast a half precision ``A`` as float32."""
    try:
        if A.dtype in _FLOATS:
            shape = A.shape
            if (
                len(shape) >= 2
                and shape[-1] == shape[-2]
                and (is_compiling() or shape[-1] <= LARGEST_DIMENSION)
            ):
                return A
    except AttributeError:
        pass
    A = check_matrix(operator, argument, A)
    if A.shape[-1] != A.shape[-2]:
        raise _errors.not_square(operator, argument, A.shape)
    return A


def check_vector(operator: str, argument: str, v: Tensor) -> Tensor:
    """``v`` of shape (*batch, n), float32 or float64; under autocast a half precision ``v`` as float32."""
    v = _check_float_tensor(operator, argument, v)
    if v.dim() < 1:
        raise _exceptions.ShapeError(
            f"{operator}: {argument} must be a vector or a batch of vectors (at least 1 dimension), "
            f"got a scalar."
        )
    return v


def check_order(operator: str, argument: str, given: Tensor, n: int) -> int:
    """Return ``n``, the order of a matrix to be made from ``given``; raise if it is too large for BLAS."""
    if not is_compiling() and n > LARGEST_DIMENSION:
        raise _errors.too_large(operator, argument, given.shape)
    return n


def _check_float_tensor(operator: str, argument: str, value: Tensor) -> Tensor:
    if isinstance(value, Tensor):
        if value.dtype in _FLOATS:
            return value
        # torch raises an error if it is asked about autocast on the device "meta".
        of_device = value.device.type
        if value.dtype in _HALVES and of_device != "meta" and torch.is_autocast_enabled(of_device):
            return value.float()
    raise _errors.wrong_dtype(operator, argument, value)


def check_factor(operator: str, argument: str, value: Any) -> Any:
    """``value``, a number to scale with. Raises for a tensor: a gradient would end there unnoticed."""
    # torch.jit.trace passes sizes, and what is computed from them, as tensors without a gradient.
    # (torch does not export the name of this public function to type checkers.)
    if isinstance(value, Tensor) and torch.jit.is_tracing() and not value.requires_grad:  # type: ignore[attr-defined]
        return value
    if isinstance(value, Tensor) or not (is_compiling() or isinstance(value, _NUMBERS)):
        raise _errors.not_a_number(operator, argument, value)
    return float(value) if isinstance(value, numbers.Real) and not is_compiling() else value


def check_number(operator: str, argument: str, value: Any) -> None:
    """Raise unless ``value`` is a real number, and no tensor."""
    if not (is_compiling() or isinstance(value, _NUMBERS)):
        raise _exceptions.OptionError(f"{operator}: {argument} must be a real number, got {value!r}.")


def check_integer(operator: str, argument: str, value: Any) -> None:
    """Raise unless ``value`` is an integer."""
    if not (type(value) is int or is_compiling() or isinstance(value, _INTEGERS)):
        raise _exceptions.OptionError(f"{operator}: {argument} must be an integer, got {value!r}.")


def check_count(operator: str, argument: str, value: Any, least: int, most: int, bound: str) -> None:
    """Raise unless ``value`` is an integer from ``least`` to ``most``, which is ``bound`` in words."""
    check_integer(operator, argument, value)
    if not least <= value <= most:
        raise _exceptions.OptionError(
            f"{operator}: {argument} must be between {least} and {bound}, which is {most}, got {value}."
        )


def check_offset(operator: str, A: Tensor, offset: Any) -> None:
    """Raise unless the square matrix ``A`` has the diagonal ``offset``, or its end is there."""
    check_integer(operator, "offset", offset)
    if abs(offset) > A.shape[-1]:
        raise _exceptions.ShapeError(
            f"{operator}: offset {offset} lies outside A of shape {tuple(A.shape)}; |offset| must be at most "
            f"{A.shape[-1]}."
        )


def check_tolerance(operator: str, argument: str, value: Any) -> None:
    """Raise if ``value`` is neither None nor a number >= 0."""
    if value is not None and not _is_not_negative(value):
        raise _exceptions.OptionError(f"{operator}: {argument} must be None or a number >= 0, got {value!r}.")


def check_not_negative(operator: str, argument: str, value: Any) -> None:
    """Raise unless ``value`` is a number >= 0."""
    if not _is_not_negative(value):
        raise _exceptions.OptionError(f"{operator}: {argument} must be a number >= 0, got {value!r}.")


def _is_not_negative(value: Any) -> bool:
    try:
        return bool(value >= 0.0)
    except (TypeError, ValueError):  # text, or several numbers
        return False


def make_refusal_of_sparse(name: str, argument_names: Sequence[str]) -> Callable[..., Any]:
    """Return a kernel that raises an error, for tensors without another kernel; dense ones never reach it."""

    def refuse(*arguments: Any) -> Any:
        for argument_name, value in zip(argument_names, arguments, strict=False):
            if isinstance(value, Tensor) and value.layout is not torch.strided:
                raise _errors.sparse_tensor(name, argument_name, value.layout)
        types = [value.type() for value in arguments if isinstance(value, Tensor)]
        raise NotImplementedError(f"{name}: there is no kernel for {', '.join(types)}.")

    return refuse


def check_same_kind(operator: str, **tensors: Tensor) -> None:
    """Raise unless all arguments have one dtype and one device."""
    first, *others = tensors.values()
    for other in others:
        if other.dtype is not first.dtype:
            raise _errors.mixed_dtypes(operator, tensors)
        if other.device != first.device:
            raise _errors.mixed_devices(operator, tensors)


def broadcast_shapes(*shapes: Sequence[int]) -> torch.Size:
    """Return the shape that all shapes broadcast to; raises RuntimeError if there is none.

    The first call of torch's function imports sympy, which takes half a second.
    """
    if is_compiling() or any(type(size) is not int for shape in shapes for size in shape):
        return torch.broadcast_shapes(*shapes)  # some sizes may be symbols
    found = [1] * max(map(len, shapes), default=0)
    for shape in shapes:
        for place, size in enumerate(reversed(shape), 1):
            if size != 1 and found[-place] not in (1, size):
                raise RuntimeError(f"the shapes {', '.join(map(str, map(tuple, shapes)))} do not broadcast")
            found[-place] = size if size != 1 else found[-place]
    return torch.Size(found)


def broadcast_batch(operator: str, **tensors: Tensor) -> Sequence[int]:
    """The leading dimensions of all arguments, broadcast against each other; raises if that is impossible."""
    try:
        return broadcast_shapes(*[tensor.shape[:-2] for tensor in tensors.values()])
    except RuntimeError:
        raise _errors.shapes_do_not_fit(
            operator, tensors, "the leading (batch) dimensions must broadcast against each other"
        ) from None


def expand_batch(A: Tensor, batch: Sequence[int]) -> Tensor:
    """``A`` with leading dimensions ``batch``; nothing is copied."""
    return A if A.shape[:-2] == batch else A.expand(*batch, *A.shape[-2:])


def store_expanded(cotangent: Tensor | None) -> Tensor | None:
    """Return a cotangent with memory for every entry: that of a sum is one number, expanded."""
    return cotangent if cotangent is None or 0 not in cotangent.stride() else cotangent.contiguous()


def is_shared(A: Tensor) -> bool:
    """Whether ``A`` is one matrix: no leading dimensions, or all of them 1."""
    return all(size == 1 for size in A.shape[:-2])


def allocate_like(like: Tensor) -> Tensor:
    """Return an uninitialised contiguous tensor with the shape of ``like``, never a view."""
    # Naming the memory format costs a quarter of a microsecond: only where it matters.
    if like.is_contiguous():
        return use_huge_pages(torch.empty_like(like))
    return use_huge_pages(torch.empty_like(like, memory_format=torch.contiguous_format))


def allocate_matrix(like: Tensor, rows: int, columns: int) -> Tensor:
    """Return an uninitialised contiguous tensor (*batch of ``like``, rows, columns)."""
    return use_huge_pages(like.new_empty((*like.shape[:-2], rows, columns)))


def may_overlap(A: Tensor, B: Tensor) -> bool:
    """Whether some element of ``A`` and some element of ``B`` may share a place in memory.

    Interleaved blocks of one matrix count as overlapping: the test is cheap, and errs on the safe side.
    """
    if A.untyped_storage().data_ptr() != B.untyped_storage().data_ptr() or not (A.numel() and B.numel()):
        return False
    return A.data_ptr() < _find_end(B) and B.data_ptr() < _find_end(A)


def _find_end(A: Tensor) -> int:
    """Return the address after the last element of ``A``."""
    last = sum((size - 1) * stride for size, stride in zip(A.shape, A.stride(), strict=True))
    return A.data_ptr() + (last + 1) * A.element_size()


def batch_operands(batch_size: int, in_dims: Sequence[int | None], arguments: Sequence[Any]) -> list[Any]:
    """The arguments of a call under vmap, each tensor with the mapped dimension in front or expanded by it.

    The operands of a registered operator agree in their leading dimensions, and so do the results.
    """
    return [
        argument
        if not isinstance(argument, Tensor)
        else argument.expand(batch_size, *argument.shape)
        if dim is None
        else argument.movedim(dim, 0)
        for dim, argument in zip(in_dims, arguments, strict=True)
    ]


def are_empty(operands: Sequence[Tensor]) -> bool:
    """Whether no operand has an element; sizes that a tracer does not know count as positive."""
    sizes = [operand.numel() for operand in operands]
    return all(type(size) is int and size == 0 for size in sizes)


def detach_results(results: Any) -> Any:
    """Return the results without history: the context of that history can keep them without a cycle."""
    return results.detach() if isinstance(results, Tensor) else tuple([result.detach() for result in results])


def make_zero_tangents(results: Any, constant_results: tuple[int, ...]) -> Any:
    """Return zero tangents for results that depend on no operand; None for those without a derivative."""
    if isinstance(results, Tensor):
        return torch.zeros_like(results)
    return tuple(
        None if position in constant_results else torch.zeros_like(result)
        for position, result in enumerate(results)
    )
