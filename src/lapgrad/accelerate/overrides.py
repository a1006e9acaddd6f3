"""Kernels that stand in front of torch's own, at the Autograd and backend keys of the dispatcher."""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, is_grad_enabled

from lapgrad._torch import private as _torch_private
from lapgrad._translation import _torch_kernels
from lapgrad._translation._results import fits_target, write_target
from lapgrad.accelerate import registry
from lapgrad.accelerate.choices import NOTHING, PROCESS, SCOPE, Choice
from lapgrad.accelerate.routes import ROUTES, Route
from lapgrad.accelerate.statistics import TAKEN, Counts

Kernel = Callable[..., Any]


class Overrides:
    """The overrides of all routes. They can be installed and removed any number of times.

    Attributes:
        counts: What became of calls.
    """

    def __init__(self) -> None:
        self.counts = Counts()
        self._lock = threading.Lock()
        self._open_scopes = 0
        #: Operator and device -> the registrations; torch takes them back when the Library is dropped.
        self._installed: dict[tuple[str, str], list[torch.library.Library]] = {}

    @property
    def installed(self) -> frozenset[tuple[str, str]]:
        """The operators, with devices, that have an override now."""
        return frozenset(self._installed)

    def install(self) -> None:
        """Put an override in front of every operator, on every device with kernels."""
        with self._lock:
            self._install_if_missing()

    def open_scope(self) -> None:
        """Install, and let nobody remove until ``close_scope``."""
        with self._lock:
            self._install_if_missing()
            self._open_scopes += 1

    def close_scope(self) -> None:
        """The counterpart of ``open_scope``."""
        with self._lock:
            self._open_scopes -= 1

    def remove(self) -> None:
        """Give all operators their own kernels back, unless a scope is open somewhere."""
        with self._lock:
            if not self._open_scopes:
                self._installed.clear()

    def _install_if_missing(self) -> None:
        if self._installed:
            return
        table = registry.load_table()
        for device in ("cpu", "cuda") if _cuda_in_use() else ("cpu",):
            for route in ROUTES:
                if device in route.devices:
                    self._installed[route.operator, device] = _install(route, device, table, self.counts)


def _cuda_in_use() -> bool:
    if not torch.cuda.is_available():
        return False
    from lapgrad._kernels import cuda as _cuda

    return _cuda.available()


def _install(route: Route, device: str, table: dict[str, Any], counts: Counts) -> list[torch.library.Library]:
    """The registrations of one route on one device."""
    keys = _torch_private.backend_keys(device)
    judge = _judge(route, device, table)
    by_torch = _torch_kernels.find_kernel(route.operator, device).call_boxed
    backend, passed_on = _backend_kernel(route, device, judge, by_torch, counts)
    kernels: list[tuple[str, str, Kernel]] = [(route.operator, keys.backend, backend)]
    if route.record is not None:
        autograd = torch.library.get_kernel(f"aten::{route.operator}", keys.autograd)
        kernels.append(
            (
                route.operator,
                keys.autograd,
                _autograd_kernel(
                    route, keys, judge, backend, passed_on, by_torch, autograd.call_boxed, counts
                ),
            )
        )
    if route.out is not None:
        name = f"{route.operator}.{route.out[0]}"
        kernels.append((name, keys.backend, _out_kernel(route, name, device, judge, counts)))
    return [_register(*kernel) for kernel in kernels]


def _register(operator: str, key: str, kernel: Kernel) -> torch.library.Library:
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        # "Overriding a previously registered kernel": that is what it is for.
        warnings.simplefilter("ignore", UserWarning)
        library.impl(operator, kernel, key, with_keyset=True, allow_override=True)
    return library


#: The reason for torch that is decided by sizes and dtype alone.
SMALL = "faster in torch"

#: judge(choice, has gradient, arguments, options) -> why torch is to compute the call, None if lapgrad is.
Judge = Callable[[Choice, bool, tuple[Any, ...], dict[str, Any]], str | None]

# What follows runs before every call of torch that is passed on. A call for a small matrix takes 2 us, the
# way through Python as much again. So the kernels below remember the sizes that they pass on, and are
# written out where functions would be clearer.

#: Sizes that a kernel remembers.
_MOST_REMEMBERED = 1000


def _judge(route: Route, device: str, table: dict[str, Any]) -> Judge:
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


def _backend_kernel(
    route: Route, device: str, judge: Judge, by_torch: Kernel, counts: Counts
) -> tuple[Kernel, dict[Any, list[int]]]:
    """For calls whose gradient, if there is one, is recorded by torch; and the sizes that it passes on."""
    name, operator, compute, position = route.name, route.operator, route.compute, route.matrix
    tensors, always_decides = route.tensors, route.must is not None
    passed_on: dict[Any, list[int]] = {}

    def backend(keys: Any, first: Any, *rest: Any, **options: Any) -> Any:
        choice = SCOPE.get() or PROCESS.current
        sizes = (first.dtype, first.shape) if tensors == 1 else (first.dtype, first.shape, rest[0].shape)
        cell = passed_on.get(sizes)
        if name in choice.names:
            if cell is not None and not choice.always:
                cell[0] += 1
                return by_torch(keys, first, *rest, **options)
            arguments = first, *rest
            reason = judge(choice, False, arguments, options)
            A = arguments[position]
            cell = counts.cell(operator, reason or TAKEN, device, A.dtype, A.shape)
            cell[0] += 1
            if reason is None:
                return _run(compute, arguments, options)
            # What must be taken depends on the number of threads, but not for a single matrix.
            if reason is SMALL and len(passed_on) < _MOST_REMEMBERED and (not always_decides or A.dim() == 2):
                passed_on[sizes] = cell
        return by_torch(keys, first, *rest, **options)

    return backend, passed_on


def _autograd_kernel(
    route: Route,
    keys: Any,
    judge: Judge,
    backend: Kernel,
    passed_on: dict[Any, list[int]],
    values_by_torch: Kernel,
    by_torch: Kernel,
    counts: Counts,
) -> Kernel:
    """For calls whose gradient lapgrad records."""
    name, operator, tensors = route.name, route.operator, route.tensors
    record, records = route.record, route.records
    device, plain, keyset = keys.backend.lower(), keys.plain, keys.keyset
    is_plain_call = _torch_private.is_plain_call
    assert record is not None
    assert route.matrix == 0
    passed_on_with_gradient: set[Any] = set()

    def autograd(found: Any, A: Any, *rest: Any, **options: Any) -> Any:
        choice = SCOPE.get() or PROCESS.current
        is_plain = is_plain_call(found, plain)
        sizes = (A.dtype, A.shape) if tensors == 1 else (A.dtype, A.shape, rest[0].shape)
        if is_plain and not (
            is_grad_enabled() and (A.requires_grad or (tensors > 1 and rest[0].requires_grad))
        ):
            # One way through Python instead of two: torch's Autograd kernel has nothing to record.
            cell = passed_on.get(sizes)
            if cell is None or choice.always:
                return backend(keyset, A, *rest, **options)
            if name in choice.names:
                cell[0] += 1
            return values_by_torch(keyset, A, *rest, **options)
        if name not in choice.names or (is_plain and sizes in passed_on_with_gradient and not choice.always):
            return by_torch(found, A, *rest, **options)  # the backend kernel decides, and counts
        # A graph that is traced for many sizes is not decided by that of one.
        if is_plain or all(map(_has_numbers_for_sizes, (A, *rest[: tensors - 1]))):
            reason = judge(choice, True, (A, *rest), options)
            if reason is None and records(A, *rest, **options):
                counts.cell(operator, TAKEN, device, A.dtype, A.shape)[0] += 1
                return _run(record, (A, *rest), options)
            if reason is SMALL and is_plain and len(passed_on_with_gradient) < _MOST_REMEMBERED:
                passed_on_with_gradient.add(sizes)
        return by_torch(found, A, *rest, **options)

    return autograd


def _has_numbers_for_sizes(tensor: Tensor) -> bool:
    return all(type(size) is int for size in tensor.shape)


def _out_kernel(route: Route, operator: str, device: str, judge: Judge, counts: Counts) -> Kernel:
    """For calls with ``out=``, which have no gradient."""
    assert route.out is not None
    name, compute, position, results = route.name, route.compute, route.matrix, route.out[1]
    by_torch = _torch_kernels.find_kernel(operator, device).call_boxed

    passed_on: dict[Any, list[int]] = {}

    def out(keys: Any, *arguments: Any, **options: Any) -> Any:
        choice = SCOPE.get() or PROCESS.current
        if name not in choice.names:
            return by_torch(keys, *arguments, **options)
        A = arguments[position]
        sizes = (A.dtype, A.shape)
        # Other kernels of torch factorise single matrices by calls with out=.
        if sizes in passed_on and not choice.always:
            passed_on[sizes][0] += 1
            return by_torch(keys, *arguments, **options)
        further = {key: value for key, value in options.items() if key not in results}
        reason = judge(choice, False, arguments, further)
        targets = tuple([options[result] for result in results])
        if reason is None:
            computed = _run(compute, arguments, further)
            values = computed if isinstance(computed, tuple) else (computed,)
            if not all(map(fits_target, targets, values)):
                reason = "out="
        cell = counts.cell(operator, reason or TAKEN, device, A.dtype, A.shape)
        cell[0] += 1
        if reason is not None:
            if reason is SMALL and A.dim() == 2 and route.tensors == 1 and len(passed_on) < _MOST_REMEMBERED:
                passed_on[sizes] = cell
            return by_torch(keys, *arguments, **options)
        for target, value in zip(targets, values, strict=True):
            write_target(target, value)
        return targets if len(targets) > 1 else targets[0]

    return out


def _run(function: Callable[..., Any], arguments: Any, options: Any) -> Any:
    """``function(*arguments, **options)``, inside of which torch's operators are torch's own.

    Some of lapgrad's kernels call torch.linalg themselves.
    """
    outer = SCOPE.set(NOTHING)
    try:
        return function(*arguments, **options)
    finally:
        SCOPE.reset(outer)
