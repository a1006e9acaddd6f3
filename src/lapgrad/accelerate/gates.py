"""Gates: compiled functions in front of the Python kernels, which pass small matrices on to torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from lapgrad._torch import private as _torch_private
from lapgrad.accelerate import registry
from lapgrad.accelerate.choices import PROCESS, SCOPE
from lapgrad.accelerate.routes import Route
from lapgrad.accelerate.statistics import Counts

Kernel = Callable[..., Any]

#: Larger than any order: no call has to be decided for its order.
_NO_ORDER = 2**62


@dataclasses.dataclass(frozen=True)
class TorchKernels:
    """The kernels of torch that a gate passes calls on to.

    Attributes:
        compute: Computes values.
        compute_keys: The keys that ``compute`` is called with; None: those of the call.
        record: Records gradients, too; None: gradients are recorded before the gate is reached.
        record_keys: The keys that ``record`` is called with; None: those of the call.
        is_final: ``record`` meets no other gate.
        direct_compute: ``compute`` by address (``_translation._torch_functions``); None if it is not known.
        direct_record: ``record`` by address.
        direct_keys: The keys of ``direct_record``, as an integer.
    """

    compute: Kernel
    compute_keys: Any
    record: Kernel | None = None
    record_keys: Any = None
    is_final: bool = True
    direct_compute: dict[str, Any] | None = None
    direct_record: dict[str, Any] | None = None
    direct_keys: int = 0


@dataclasses.dataclass(frozen=True)
class PythonKernels:
    """The functions of lapgrad that a gate calls.

    Attributes:
        decide: For calls that the gate cannot decide; gets the arguments as they are.
        take: For calls without a gradient that are faster in lapgrad; None: ``decide`` has them, too. Gets
            the arguments of the operator.
        take_recorded: The same with a gradient.
        take_directly: The same as ``take`` for calls of the shape ``Route.shape``, which the gate checks and
            counts itself; None: ``take`` has them, too.
        record_directly: The same with a gradient.
    """

    decide: Kernel
    take: Kernel | None = None
    take_recorded: Kernel | None = None
    take_directly: Kernel | None = None
    record_directly: Kernel | None = None


def make_gate(
    route: Route,
    operator: str,
    device: str,
    table: dict[str, Any],
    by_torch: TorchKernels,
    by_lapgrad: PythonKernels,
    has_keys: bool,
    counts: Counts,
) -> Kernel:
    """Return a gate in front of lapgrad's kernels, or their ``decide`` if there is no compiled core.

    Args:
        route: The operator.
        operator: Its name with the overload, for statistics.
        device: "cpu" or "cuda".
        table: The thresholds, see ``registry.load_table``.
        by_torch: Where calls for small matrices go.
        by_lapgrad: Where all other calls go.
        has_keys: The first argument of a call is its set of keys.
        counts: Collects what the gate counts.
    """
    exchange = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if exchange is None:
        return by_lapgrad.decide
    options = {
        "read_scope": SCOPE.get,
        "process": PROCESS,
        "name": route.name,
        "tensor_types": (torch.Tensor, torch.nn.Parameter),
        "exchange": exchange,
        "decide": by_lapgrad.decide,
        "take": by_lapgrad.take,
        "take_recorded": by_lapgrad.take_recorded,
        "take_directly": by_lapgrad.take_directly,
        "record_directly": by_lapgrad.record_directly,
        "shape": route.shape,
        "compute": by_torch.compute,
        "compute_keys": by_torch.compute_keys,
        "record": by_torch.record,
        "record_keys": by_torch.record_keys,
        "counts_recorded": by_torch.is_final,
        "direct_compute": by_torch.direct_compute,
        "direct_record": by_torch.direct_record,
        "direct_keys": by_torch.direct_keys,
        "is_grad_enabled": torch.is_grad_enabled,
        "forward_level": vars(torch.autograd.forward_ad),
        "plain_keys": _torch_private.get_backend_keys(device).plain,
        "has_keys": has_keys,
        "matrix": route.matrix,
        "right_side": -1 if route.right_side is None else route.right_side,
        "tensors": route.tensors,
        "narrow": registry.NARROW,
        "safe_order": _NO_ORDER if route.safe_order is None or device != "cpu" else route.safe_order,
        "thresholds": _flatten_thresholds(table, device, route.operator),
    }
    from lapgrad._kernels import native  # binds BLAS, which `import lapgrad` leaves to the first operator

    gate: Kernel | None = native.make_call_gate(options)
    if gate is None:
        return by_lapgrad.decide
    counts.add_gate(operator, device, gate)
    return gate


def _flatten_thresholds(table: dict[str, Any], device: str, operator: str) -> list[int]:
    """All thresholds in the order of the gate: dtype, narrow, gradient, order."""
    found = [registry.find_thresholds(table, device, name) for name in (operator, f"{operator} narrow")]
    return [
        least
        for dtype in (torch.float32, torch.float64)
        for thresholds in found
        for row in thresholds[dtype]
        for least in row
    ]
