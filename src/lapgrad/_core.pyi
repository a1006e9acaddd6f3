# The compiled core (csrc/). `_cpu.py` and `_blas.py` alone call it; csrc/bind.cpp says what it offers.
from typing import Any

def __getattr__(name: str) -> Any: ...
