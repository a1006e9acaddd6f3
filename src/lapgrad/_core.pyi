# The compiled core (csrc/). Its functions take addresses, sizes and strides; csrc/bind/*.cpp document them.
# Only `_blas.py` and `_kernels/` call it.
from typing import Any

def __getattr__(name: str) -> Any: ...
