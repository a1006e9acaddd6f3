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
    backend = _backend_kernel(route, device, judge, counts)
    kernels: list[tuple[str, str, Kernel]] = [(route.operator, keys.backend, backend)]
    if route.record is not None:
        autograd = torch.library.get_kernel(f"aten::{route.operator}", keys.autograd)
        kernels.append(
            (
                route.operator,
                keys.autograd,
                _autograd_kernel(route, keys, judge, backend, autograd.call_boxed, counts),
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


#: judge(choice, has gradient, arguments, options) -> why torch is to compute the call, None if lapgrad is.
Judge = Callable[[Choice, bool, tuple[Any, ...], dict[str, Any]], str | None]


def _judge(route: Route, device: str, table: dict[str, Any]) -> Judge:
    thresholds = registry.find_thresholds(table, device, route.operator)
    narrow = registry.find_thresholds(table, device, f"{route.operator} narrow")
    position, right_side, serves, must = route.matrix, route.right_side, route.serves, route.must
    last = registry.BUCKETS - 1

    def judge(
        choice: Choice, has_gradient: bool, arguments: tuple[Any, ...], options: dict[str, Any]
    ) -> str | None:
        A = arguments[position]
        known = thresholds.get(A.dtype)
        if known is None:
            return "dtype"
        shape = A.shape
        if len(shape) < 2:
            return "arguments"
        rows, order = shape[-2:]
        if rows > order:
            order = rows
        if not choice.always:
            if right_side is not None and min(arguments[right_side].shape[-2:], default=0) <= registry.NARROW:
                known = narrow[A.dtype]
            least = known[has_gradient][min((order - 1).bit_length(), last)]
            if least != 1:
                items = 1 if len(shape) == 2 else math.prod(shape[:-2])
                if (least == 0 or items < least) and not must(*arguments, **options):
                    return "faster in torch"
        if not A.numel():
            return "empty"
        return None if serves(*arguments, **options) else "arguments"

    return judge


def _backend_kernel(route: Route, device: str, judge: Judge, counts: Counts) -> Kernel:
    """For calls whose gradient, if there is one, is recorded by torch."""
    name, operator, compute, position = route.name, route.operator, route.compute, route.matrix
    by_torch = _torch_kernels.find_kernel(operator, device).call_boxed

    def backend(keys: Any, *arguments: Any, **options: Any) -> Any:
        choice = SCOPE.get() or PROCESS.current
        if name not in choice.names:
            return by_torch(keys, *arguments, **options)
        reason = judge(choice, False, arguments, options)
        A = arguments[position]
        counts[operator, reason or TAKEN, device, A.dtype, A.shape] += 1
        if reason is not None:
            return by_torch(keys, *arguments, **options)
        return _run(compute, arguments, options)

    return backend


def _autograd_kernel(
    route: Route, keys: Any, judge: Judge, backend: Kernel, by_torch: Kernel, counts: Counts
) -> Kernel:
    """For calls whose gradient lapgrad records."""
    name, operator, record, records, position = (
        route.name,
        route.operator,
        route.record,
        route.records,
        route.matrix,
    )
    device, tensors, plain, keyset = keys.backend.lower(), route.tensors, keys.plain, keys.keyset
    assert record is not None

    def wants_gradient(arguments: tuple[Any, ...]) -> bool:
        if is_grad_enabled():
            for tensor in arguments[:tensors]:
                if tensor.requires_grad:
                    return True
        return False

    def autograd(found: Any, *arguments: Any, **options: Any) -> Any:
        is_plain = found.raw_repr() == plain
        if is_plain and not wants_gradient(arguments) and not _torch_private.has_dual_level():
            # One way through Python instead of two: torch's Autograd kernel has nothing to record.
            return backend(keyset, *arguments, **options)
        choice = SCOPE.get() or PROCESS.current
        if (
            name not in choice.names
            # A graph that is traced for many sizes is not decided by that of one.
            or not (is_plain or all(map(_has_numbers_for_sizes, arguments[:tensors])))
            or judge(choice, True, arguments, options) is not None
            or not records(*arguments, **options)
        ):
            return by_torch(found, *arguments, **options)  # the backend kernel decides, and counts
        A = arguments[position]
        counts[operator, TAKEN, device, A.dtype, A.shape] += 1
        return _run(record, arguments, options)

    return autograd


def _has_numbers_for_sizes(tensor: Tensor) -> bool:
    return all(type(size) is int for size in tensor.shape)


def _out_kernel(route: Route, operator: str, device: str, judge: Judge, counts: Counts) -> Kernel:
    """For calls with ``out=``, which have no gradient."""
    assert route.out is not None
    name, compute, position, results = route.name, route.compute, route.matrix, route.out[1]
    by_torch = _torch_kernels.find_kernel(operator, device).call_boxed

    def out(keys: Any, *arguments: Any, **options: Any) -> Any:
        choice = SCOPE.get() or PROCESS.current
        if name not in choice.names:
            return by_torch(keys, *arguments, **options)
        further = {key: value for key, value in options.items() if key not in results}
        reason = judge(choice, False, arguments, further)
        A = arguments[position]
        targets = tuple([options[result] for result in results])
        if reason is None:
            computed = _run(compute, arguments, further)
            values = computed if isinstance(computed, tuple) else (computed,)
            if not all(map(fits_target, targets, values)):
                reason = "out="
        counts[operator, reason or TAKEN, device, A.dtype, A.shape] += 1
        if reason is not None:
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
