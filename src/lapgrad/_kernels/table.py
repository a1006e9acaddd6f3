"""One table: routine x device -> the raw kernel, an in-place function that knows nothing of autograd.

Routines are not listed anywhere: they are collected from the packages ``torch``, ``cpu`` and ``cuda``. A
kernel module there is named by its stem and has a function of that name. Every public function that it
defines is a routine. A device uses its own kernel of a routine if there is one, else that of ``torch``, which
works on every device.

A routine without a kernel in ``torch`` is optional: operators ask ``has_kernel`` first, and compose it of
other routines on a device that has none. Where a kernel serves only some operands, a routine ``serves_NAME``
beside it says which.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lapgrad._torch.precision import keeps_products, name_precision_of_cuda
from lapgrad._torch.private import get_cuda_device, get_cuda_stream

Kernel = Callable[..., Any]


def lookup(routine: str, tensor: Tensor) -> Kernel:
    """Return the kernel of ``routine`` for the device of ``tensor``."""
    if tensor.is_cpu:
        return _CPU[routine]
    return _CUDA[routine] if tensor.is_cuda else _ELSEWHERE[routine]


def has_kernel(routine: str, tensor: Tensor) -> bool:
    """Return whether the device of ``tensor`` has a kernel of an optional routine."""
    kernels = _CPU if tensor.is_cpu else _CUDA if tensor.is_cuda else _ELSEWHERE
    return routine in kernels.fill()


def make_shortcut(routine: str) -> Kernel:
    """Return a function that computes an operator on ordinary tensors, or returns None.

    It takes the arguments of the registered operator, allocates the results and returns them. The result is
    None where it does not serve the call: see csrc/bind/bind_shortcuts.cpp, and csrc/bind/device_shortcuts.h
    for CUDA tensors. Calls must not be traced.
    """
    name = f"{routine}_shortcut"

    def take_shortcut(*arguments: Any) -> Any:
        shortcut = _CPU.get(name)
        return None if shortcut is None else shortcut(*arguments)

    return take_shortcut


def is_core_in_use() -> bool:
    """Return whether CPU tensors run on the compiled core."""
    from lapgrad._kernels import cpu

    return cpu.is_available()


def collect_kernels(package: str) -> dict[str, Kernel]:
    """Return the routines of a package of kernels, by name: the public functions of its kernel modules."""
    found: dict[str, Kernel] = {}
    for module_info in pkgutil.iter_modules(importlib.import_module(package).__path__):
        stem = module_info.name
        if stem.startswith("_") or module_info.ispkg:
            continue
        module = importlib.import_module(f"{package}.{stem}")
        own = {
            name: value
            for name, value in vars(module).items()
            if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
        }
        if stem in own:
            found.update(own)
    return found


class KernelTable(dict[str, Kernel]):
    """The kernels of a device by routine, collected at the first lookup: importing lapgrad stays cheap.

    Args:
        collect: Returns the kernels of the device; none if they are switched off or (with a warning) missing.
        adapt: Applied to the kernels in plain PyTorch that serve the remaining routines, if ``collect`` has
            returned any kernel.
    """

    def __init__(
        self, collect: Callable[[], dict[str, Kernel]], adapt: Callable[[Kernel], Kernel] | None = None
    ) -> None:
        super().__init__()
        self._collect = collect
        self._adapt = adapt
        self._is_filled = False

    def __missing__(self, routine: str) -> Kernel:
        if self._is_filled:
            raise KeyError(routine)
        return self.fill()[routine]

    def fill(self) -> KernelTable:
        """Collect the kernels, if that has not happened yet, and return the table itself."""
        if not self._is_filled:
            own = self._collect()
            in_torch = collect_kernels("lapgrad._kernels.torch")
            if own and self._adapt is not None:
                in_torch = {name: self._adapt(kernel) for name, kernel in in_torch.items()}
            self.update(in_torch | own)
            self._is_filled = True
        return self


def _collect_compiled() -> dict[str, Kernel]:
    """Return the kernels over the compiled core; none if it is switched off, or missing (with a warning)."""
    from lapgrad._kernels import cpu

    if cpu.is_available():
        shortcuts = cpu.list_shortcuts()
        if shortcuts and torch.version.cuda is not None:
            cpu.core.set_device_shortcuts(_list_shortcut_settings())
        return collect_kernels(cpu.__name__) | shortcuts
    if not cpu.is_switched_off():
        warnings.warn(
            f"lapgrad's compiled core is not available ({cpu.UNAVAILABLE}); CPU tensors use the slower "
            f"kernels in plain PyTorch. Set LAPGRAD_CORE=off to choose them without this warning.",
            RuntimeWarning,
            stacklevel=5,
        )
    return {}


def _collect_cuda() -> dict[str, Kernel]:
    """Return the kernels over NVIDIA's libraries; none if switched off, or missing (with a warning)."""
    from lapgrad._kernels import cuda

    if cuda.is_available():
        _CPU.fill()  # the core's shortcuts serve CUDA tensors, too
        return collect_kernels(cuda.__name__)
    if not cuda.is_switched_off():
        warnings.warn(
            f"lapgrad's CUDA kernels need {' and '.join(cuda.list_missing_packages())} (pip install "
            f"'lapgrad[cuda]'); CUDA tensors use the slower kernels in plain PyTorch. Set LAPGRAD_CUDA=off "
            f"to choose them without this warning.",
            RuntimeWarning,
            stacklevel=5,
        )
    return {}


def _list_shortcut_settings() -> dict[str, Any]:
    """Return the argument of the core's ``set_device_shortcuts`` (csrc/bind/device_shortcuts.cpp)."""
    from lapgrad._kernels.cuda.shortcuts.planned import run_planned

    return {
        "device": _CUDA_DEVICE,
        "is_there": "is_cuda",
        "find_shortcut": _find_cuda_shortcut,
        "keeps_precision": keeps_products,
        "precision": name_precision_of_cuda(),
        "run_planned": run_planned,
        "get_device": get_cuda_device,
        "get_stream": get_cuda_stream,
    }


def _find_cuda_shortcut(operator: str) -> tuple[Any, ...] | None:
    """Return the entry of an operator in the table of ``cuda.shortcuts``; None if it has none."""
    from lapgrad._kernels import cuda

    if not cuda.is_available():
        return None
    from lapgrad._kernels.cuda.shortcuts.table import SHORTCUTS

    return SHORTCUTS.get(operator)


def _run_on_its_device(kernel: Kernel) -> Kernel:
    """Return a kernel in plain PyTorch that runs on the device of its operands, and in its CUDA context."""
    from lapgrad._kernels import cuda

    return cuda.on_its_device(kernel)


#: DLPack's number of CUDA devices.
_CUDA_DEVICE = 2

_CPU = KernelTable(_collect_compiled)
#: The shortcut ``NAME_shortcut`` of an operator, as ``make_shortcut`` describes; None if the core has none,
#: and before the table is filled. It is the table's own method, because one more call would take noticeable
#: time for a small matrix.
find_shortcut: Callable[[str], Kernel | None] = _CPU.get
_CUDA = KernelTable(_collect_cuda, adapt=_run_on_its_device)
_ELSEWHERE = KernelTable(dict)
