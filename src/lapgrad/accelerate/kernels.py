"""Python kernels in front of torch's own: they judge a call, and run lapgrad's function or torch's kernel.

Calls for small matrices seldom get here: ``gates`` passes them on before.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor, is_grad_enabled, strided

from lapgrad._torch import private as _torch_private
from lapgrad._translation._results import fits_target, write_target
from lapgrad.accelerate import registry
from lapgrad.accelerate.choices import NOTHING, PROCESS, SCOPE, Choice
from lapgrad.accelerate.routes import Route
from lapgrad.accelerate.statistics import SMALL, TAKEN, Counts

Kernel = Callable[..., Any]

#: judge(choice, has gradient, arguments, options) -> why torch is to compute the call, None if lapgrad is.
Judge = Callable[[Choice, bool, tuple[Any, ...], dict[str, Any]], str | None]


def make_judge(route: Route, device: str, table: dict[str, Any]) -> Judge:
    """Return a function that decides whether lapgrad or torch computes a call, by measured thresholds."""
    thresholds = registry.find_thresholds(table, device, route.operator)
    narrow = registry.find_thresholds(table, device, f"{route.operator} narrow")
    position, right_side, serves, must = route.matrix, route.right_side, route.serves, route.must
    narrow_width = registry.NARROW

    def judge(
        choice: Choice, has_gradient: bool, arguments: tuple[Any, ...], options: dict[str, Any]
    ) -> str | None:
        A = arguments[position]
        known = thresholds.get(A.dtype)
        if known is None:
            return "dtype"
        shape = A.shape
        dimensions = len(shape)
        if dimensions < 2:
            return "arguments"
        order = max(shape[-1], shape[-2])
        if not choice.always:
            if right_side is not None:
                side = arguments[right_side].shape
                if len(side) >= 2 and (side[-1] <= narrow_width or side[-2] <= narrow_width):
                    known = narrow[A.dtype]
            least = known[has_gradient][(order - 1).bit_length()]
            if (
                least != 1
                and (dimensions == 2 or least == 0 or math.prod(shape[:-2]) < least)
                and (must is None or not must(*arguments, **options))
            ):
                return SMALL
        if not A.numel():
            return "empty"
        return None if serves(*arguments, **options) else "arguments"

    return judge


def make_taking_kernel(route: Route, device: str, records: bool, otherwise: Kernel, counts: Counts) -> Kernel:
    """Return the kernel for calls that are known to be faster in lapgrad.

    Args:
        route: The operator.
        device: "cpu" or "cuda".
        records: With a gradient.
        otherwise: For calls with arguments that lapgrad does not serve.
        counts: Where calls are counted.
    """
    operator, position, serves = route.operator, route.matrix, route.serves
    function = (route.record_eagerly or route.record) if records else route.compute
    has_derivatives = route.records
    assert function is not None

    def take(*arguments: Any, **options: Any) -> Any:
        if not serves(*arguments, **options) or (records and not has_derivatives(*arguments, **options)):
            return otherwise(*arguments, **options)
        A = arguments[position]
        counts.cell(operator, TAKEN, device, A.dtype, A.shape)[0] += 1
        outer = SCOPE.set(NOTHING)  # as _run does
        try:
            return function(*arguments, **options)
        finally:
            SCOPE.reset(outer)

    return take


def make_backend_kernel(route: Route, device: str, judge: Judge, by_torch: Kernel, counts: Counts) -> Kernel:
    """Return the kernel for calls whose gradient, if there is one, is recorded by torch.

    Args:
        route: The operator.
        device: "cpu" or "cuda".
        judge: See ``make_judge``.
        by_torch: torch's kernel, which takes a set of keys first.
        counts: Where calls are counted.
    """
    name, operator, compute, position = route.name, route.operator, route.compute, route.matrix
    keyset = _torch_private.get_backend_keys(device).keyset

    def backend(*arguments: Any, **options: Any) -> Any:
        choice = SCOPE.get() or PROCESS.current
        if name in choice.names:
            reason = judge(choice, False, arguments, options)
            A = arguments[position]
            counts.cell(operator, reason or TAKEN, device, A.dtype, A.shape)[0] += 1
            if reason is None:
                return _run(compute, arguments, options)
        return by_torch(keyset, *arguments, **options)

    return backend


def make_autograd_kernel(
    route: Route, device: str, judge: Judge, backend: Kernel, by_torch: Kernel, counts: Counts
) -> Kernel:
    """Return the kernel for calls whose gradient lapgrad records.

    Args:
        route: The operator.
        device: "cpu" or "cuda".
        judge: See ``make_judge``.
        backend: The kernel for calls without a gradient.
        by_torch: torch's kernel that records gradients.
        counts: Where calls are counted.
    """
    name, operator, tensors = route.name, route.operator, route.tensors
    record, records = route.record, route.records
    plain = _torch_private.get_backend_keys(device).plain
    is_plain_call = _torch_private.is_plain_call
    assert record is not None
    assert route.matrix == 0

    def autograd(found: Any, *arguments: Any, **options: Any) -> Any:
        choice = SCOPE.get() or PROCESS.current
        is_plain = is_plain_call(found, plain)
        operands = arguments[:tensors]
        has_gradient = _records_gradient(operands)
        if is_plain and not has_gradient:
            return backend(*arguments, **options)
        if name in choice.names and (is_plain or all(map(_may_be_taken, operands))):
            reason = judge(choice, has_gradient, arguments, options)
            if reason is None and records(*arguments, **options):
                A = arguments[0]
                counts.cell(operator, TAKEN, device, A.dtype, A.shape)[0] += 1
                return _run(record, arguments, options)
        return by_torch(found, *arguments, **options)  # the backend kernel counts

    return autograd


def make_composite_kernel(device: str, backend: Kernel, by_torch: Kernel) -> Kernel:
    """Return the kernel at the Autograd key for an operator without a gradient that torch composes of others.

    Args:
        device: "cpu" or "cuda".
        backend: The kernel for ordinary tensors.
        by_torch: torch's kernel at the same key, for transforms and modes: they see what it is composed of.
    """
    plain = _torch_private.get_backend_keys(device).plain
    is_plain_call = _torch_private.is_plain_call

    def composite(found: Any, *arguments: Any, **options: Any) -> Any:
        if is_plain_call(found, plain):
            return backend(*arguments, **options)
        return by_torch(found, *arguments, **options)

    return composite


def make_out_kernel(route: Route, device: str, judge: Judge, by_torch: Kernel, counts: Counts) -> Kernel:
    """Return the kernel for calls with ``out=``, which have no gradient, at the Autograd key.

    Args:
        route: The operator.
        device: "cpu" or "cuda".
        judge: See ``make_judge``.
        by_torch: torch's kernel at the same key.
        counts: Where calls are counted.
    """
    assert route.out is not None
    name, compute, position, results = route.name, route.compute, route.matrix, route.out[1]
    operator = f"{route.operator}.{route.out[0]}"
    plain = _torch_private.get_backend_keys(device).plain

    def out(found: Any, *arguments: Any, **options: Any) -> Any:
        choice = SCOPE.get() or PROCESS.current
        targets = tuple([options[result] for result in results])
        if (
            name not in choice.names
            or not _torch_private.is_plain_call(found, plain)
            or _records_gradient((*arguments, *targets))  # torch refuses it
        ):
            return by_torch(found, *arguments, **options)
        A = arguments[position]
        further = {key: value for key, value in options.items() if key not in results}
        reason = judge(choice, False, arguments, further)
        if reason is None:
            computed = _run(compute, arguments, further)
            values = computed if isinstance(computed, tuple) else (computed,)
            if not all(map(fits_target, targets, values)):
                reason = "out="
        counts.cell(operator, reason or TAKEN, device, A.dtype, A.shape)[0] += 1
        if reason is not None:
            return by_torch(found, *arguments, **options)
        for target, value in zip(targets, values, strict=True):
            write_target(target, value)
        return targets if len(targets) > 1 else targets[0]

    return out


def _records_gradient(operands: tuple[Any, ...]) -> bool:
    return is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in operands)


def _may_be_taken(tensor: Tensor) -> bool:
    # Sparse tensors have the key of dense ones here. A graph that is traced for many sizes must not depend on
    # one of them.
    return tensor.layout is strided and all(type(size) is int for size in tensor.shape)


def _run(function: Callable[..., Any], arguments: Any, options: Any) -> Any:
    """Return ``function(*arguments, **options)``, computed with acceleration switched off.

    Some of lapgrad's kernels call torch.linalg themselves.
    """
    outer = SCOPE.set(NOTHING)
    try:
        return function(*arguments, **options)
    finally:
        SCOPE.reset(outer)
