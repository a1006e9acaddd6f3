"""Kernels that stand in front of torch's own, at the Autograd and backend keys of the dispatcher."""

from __future__ import annotations

import dataclasses
import functools
import threading
import warnings
from typing import Any, NamedTuple

import torch

from lapgrad._kernels.table import is_core_in_use
from lapgrad._torch import private as _torch_private
from lapgrad._translation import _torch_functions, _torch_kernels
from lapgrad.accelerate import kernels, registry
from lapgrad.accelerate.choices import Choice
from lapgrad.accelerate.gates import Kernel, PythonKernels, TorchKernels, make_gate
from lapgrad.accelerate.routes import ROUTES, Route, Shape
from lapgrad.accelerate.statistics import Counts

#: How often overrides are removed. What is kept for each removal (``Overrides._kept``) takes 13 kB.
_MOST_REMOVALS = 50


class Override(NamedTuple):
    """One kernel in front of one of torch's.

    Attributes:
        operator: With the overload.
        key: Of the dispatcher.
        kernel: What is called.
        has_keys: The set of keys of the call is its first argument.
    """

    operator: str
    key: str
    kernel: Kernel
    has_keys: bool


class MadeOverrides(NamedTuple):
    """The overrides of one operator on one device, installed or not.

    Attributes:
        route: The operator.
        is_useful: Whether lapgrad takes some calls by its thresholds, not only with ``always=True``.
        overrides: At each of its keys.
    """

    route: Route
    is_useful: bool
    overrides: list[Override]


class Overrides:
    """The overrides of all routes. They can be installed and removed, up to ``_MOST_REMOVALS`` times.

    An operator has its override only where a choice may take some of its calls: a call that meets one takes
    a microsecond longer.

    Attributes:
        counts: What became of calls.
    """

    def __init__(self) -> None:
        self.counts = Counts()
        self._lock = threading.Lock()
        self._open_scopes = 0
        #: Operator and device -> what is registered for it. Made once: gates keep counts.
        self._made: dict[tuple[str, str], MadeOverrides] = {}
        #: Operator and device -> the registrations; torch takes them back when the Library is dropped.
        self._installed: dict[tuple[str, str], list[torch.library.Library]] = {}
        #: References to all kernels that were registered. torch frees one that is taken back and has no
        #: reference, also while another thread waits for Python's lock to run it.
        self._kept: list[Any] = []
        self._removals = 0

    @property
    def installed(self) -> frozenset[tuple[str, str]]:
        """The operators, with devices, that have an override now."""
        return frozenset(self._installed)

    def install(self, choice: Choice) -> None:
        """Put overrides in front of the operators that ``choice`` asks for, on every device with kernels."""
        with self._lock:
            self._install_if_missing(choice)

    def open_scope(self, choice: Choice) -> None:
        """Install, and prevent removal until ``close_scope``."""
        with self._lock:
            self._install_if_missing(choice)
            self._open_scopes += 1

    def close_scope(self) -> None:
        """The counterpart of ``open_scope``."""
        with self._lock:
            self._open_scopes -= 1

    def remove(self) -> None:
        """Give all operators their own kernels back, unless a scope is open somewhere.

        After ``_MOST_REMOVALS`` times the overrides stay, and pass on what no choice asks for.
        """
        with self._lock:
            if not self._open_scopes and self._removals < _MOST_REMOVALS:
                self._removals += bool(self._installed)
                self._installed.clear()

    def _install_if_missing(self, choice: Choice) -> None:
        if not choice.names:
            return
        if not self._made:
            self._make_all()
        for key, made in self._made.items():
            is_wanted = made.route.name in choice.names and (made.is_useful or choice.always)
            if is_wanted and key not in self._installed:
                self._installed[key] = [self._register(override) for override in made.overrides]

    def _register(self, override: Override) -> torch.library.Library:
        library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            # torch warns "Overriding a previously registered kernel", which is the purpose here.
            warnings.simplefilter("ignore", UserWarning)
            library.impl(
                override.operator,
                override.kernel,
                override.key,
                with_keyset=override.has_keys,
                allow_override=True,
            )
        self._kept.append(torch.library.get_kernel(f"aten::{override.operator}", override.key))
        return library

    def _make_all(self) -> None:
        """Make the overrides of all routes, before the first is installed: they keep torch's kernels."""
        table = registry.load_table()
        for device in ("cpu", "cuda") if _is_cuda_in_use() else ("cpu",):
            for route in ROUTES:
                if device in route.devices:
                    overrides = _make_overrides(route, device, table, self.counts)
                    is_useful = route.must is not None and device == "cpu"
                    is_useful |= registry.has_threshold(table, device, route.operator)
                    self._made[route.operator, device] = MadeOverrides(route, is_useful, overrides)


def _is_cuda_in_use() -> bool:
    if not torch.cuda.is_available():
        return False
    from lapgrad._kernels import cuda as _cuda

    return _cuda.is_available()


def _make_overrides(route: Route, device: str, table: dict[str, Any], counts: Counts) -> list[Override]:
    """The overrides of one route on one device. None may be installed yet: they keep torch's kernels."""
    keys = _torch_private.get_backend_keys(device)
    judge = kernels.make_judge(route, device, table)

    def gate(operator: str, key: str, by_torch: TorchKernels, by_lapgrad: PythonKernels) -> Override:
        has_keys = key == keys.autograd
        kernel = make_gate(route, operator, device, table, by_torch, by_lapgrad, has_keys, counts)
        return Override(operator, key, kernel, has_keys)

    compute = _torch_kernels.find_kernel(route.operator, device).call_boxed
    backend = kernels.make_backend_kernel(route, device, judge, compute, counts)
    take = kernels.make_taking_kernel(route, device, False, backend, counts)
    direct = _torch_functions.describe_function(route.operator, records=False) if device == "cpu" else None
    by_torch = TorchKernels(compute, keys.keyset, direct_compute=direct)
    is_direct = device == "cpu" and route.shape is not Shape.ANY and is_core_in_use()
    take_directly = route.compute if is_direct else None
    overrides = [
        gate(
            route.operator, keys.backend, by_torch, PythonKernels(backend, take, take_directly=take_directly)
        )
    ]
    if route.record is not None:
        record = _find_autograd_kernel(route.operator, keys.autograd)
        bypass = _torch_functions.find_bypass(route.operator, device)
        autograd = kernels.make_autograd_kernel(route, device, judge, backend, record, counts)
        take_recorded = kernels.make_taking_kernel(
            route, device, True, functools.partial(autograd, keys.plain_keyset), counts
        )
        by_torch = TorchKernels(compute, keys.keyset, record, bypass, bypass is not None, direct)
        if bypass is not None and direct is not None:
            # Without keys of a bypass, going on from here by keys would lead back to this override.
            by_torch = dataclasses.replace(
                by_torch,
                direct_record=_torch_functions.describe_function(route.operator, records=True),
                direct_keys=bypass.raw_repr(),
            )
        by_lapgrad = PythonKernels(
            autograd, take, take_recorded, take_directly, route.record_eagerly if is_direct else None
        )
        overrides.append(gate(route.operator, keys.autograd, by_torch, by_lapgrad))
    if route.is_composite:
        composed = _find_autograd_kernel(route.operator, keys.autograd)
        composite = kernels.make_composite_kernel(device, backend, composed)
        overrides.append(
            gate(route.operator, keys.autograd, TorchKernels(composed, None), PythonKernels(composite, take))
        )
    if route.out is not None:
        # Only at the Autograd key: kernels of torch call each other with out= below it, and these calls need
        # no gate. Calls with out= in inference mode skip that key, and are left to torch.
        operator = f"{route.operator}.{route.out[0]}"
        write = _find_autograd_kernel(operator, keys.autograd)
        out = kernels.make_out_kernel(route, device, judge, write, counts)
        overrides.append(gate(operator, keys.autograd, TorchKernels(write, None), PythonKernels(out)))
    return overrides


@functools.cache
def _find_autograd_kernel(operator: str, key: str) -> Kernel:
    """Return torch's own kernel of an operator at a key.

    The first call must come before an override is installed. Later calls return the same kernel.
    """
    kernel: Kernel = torch.library.get_kernel(f"aten::{operator}", key).call_boxed
    return kernel
