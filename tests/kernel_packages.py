"""The raw kernels of one package, as attributes: for tests that call a kernel of a device directly."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from lapgrad._kernels import table

in_torch = SimpleNamespace(**table.collect_kernels("lapgrad._kernels.torch"))

#: What the table has for CUDA tensors, also on a machine without a GPU.
CUDA_KERNELS: dict[str, table.Kernel] = {
    **{name: table._run_on_its_device(kernel) for name, kernel in vars(in_torch).items()},
    **table.collect_kernels("lapgrad._kernels.cuda"),
}
on_cuda = SimpleNamespace(**CUDA_KERNELS)


def replace_by_torch(patch: pytest.MonkeyPatch, kernels: table.KernelTable, *routines: str) -> None:
    """Replace kernels of a device by those of plain PyTorch; remove optional ones, which that lacks.

    Shortcuts, which bypass the table, are removed, too.
    """
    kernels.fill()
    for routine in routines:
        patch.delitem(kernels, f"{routine}_shortcut", raising=False)
        if routine in vars(in_torch):
            patch.setitem(kernels, routine, getattr(in_torch, routine))
        else:
            patch.delitem(kernels, routine, raising=False)
