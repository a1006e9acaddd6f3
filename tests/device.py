"""The device of the shared tests: LAPGRAD_TEST_DEVICE, else the CPU.

Operands are drawn on the CPU and moved, so that every device is tested with the same numbers.
"""

from __future__ import annotations

import os

import torch

from lapgrad._kernels import table as _kernels

DEVICE = torch.device(os.environ.get("LAPGRAD_TEST_DEVICE", "cpu"))

#: The table of kernels that operators on this device look into; tests replace entries of it.
KERNELS = _kernels._CPU if DEVICE.type == "cpu" else _kernels._CUDA
