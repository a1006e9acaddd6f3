# The compiled core (csrc/). `_kernels/cpu/` and `_blas.py` alone call it; csrc/bind*.cpp say what it offers.
from typing import Any

def __getattr__(name: str) -> Any: ...
