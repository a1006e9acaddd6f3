"""Lets torch round products of float32 matrices, and records the products that it may round."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from device import DEVICE
from torch.utils._python_dispatch import TorchDispatchMode

from lapgrad._torch import precision as _precision

#: The settings that round products most: to 10 or 7 bits in place of 23. A CPU without such products ignores
#: them.
ROUNDED = {"cuda": "tf32", "cpu": "bf16"}[DEVICE.type]
SETTING = (_precision._CUDA if DEVICE.type == "cuda" else _precision._CPU)._setting

aten = torch.ops.aten
_PRODUCTS = (aten.mm, aten.bmm, aten.addmm, aten.baddbmm, aten.mv, aten.addmv)


@contextlib.contextmanager
def let_torch_round() -> Iterator[None]:
    before = SETTING.fp32_precision
    SETTING.fp32_precision = ROUNDED
    try:
        yield
        assert SETTING.fp32_precision == ROUNDED  # as it was found
    finally:
        SETTING.fp32_precision = before


class Watching(TorchDispatchMode):
    """Records the products of float32 matrices that torch may round, on any machine.

    Those inside of a kernel it does not see.
    """

    def __init__(self) -> None:
        super().__init__()
        self.rounded: list[str] = []

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        product = operator.overloadpacket in _PRODUCTS and args[0].dtype is torch.float32
        if product and SETTING.fp32_precision not in _precision._FULL:
            self.rounded.append(str(operator))
        return operator(*args, **(kwargs or {}))
