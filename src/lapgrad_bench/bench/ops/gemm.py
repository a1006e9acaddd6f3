"""torch.mm, the reference for speed: the rate of every case is compared with it in the same run."""

from __future__ import annotations

import functools

import torch

from lapgrad_bench.bench.measure.timing import Thunk


def choose_order(device: torch.device, threads: int) -> int:
    """Return the order of the matrices: large enough that arithmetic limits the speed, and always the same.

    Example:
        >>> choose_order(torch.device("cpu"), 2)
        768
    """
    if device.type == "cuda":
        return 8192
    return 768 if threads <= 4 else 2048 if threads <= 32 else 4096


def count_flops(device: torch.device, threads: int) -> float:
    """Return the flops of one product."""
    return 2.0 * choose_order(device, threads) ** 3


def make_product(dtype: torch.dtype, device: torch.device, threads: int) -> Thunk:
    """Return a function that computes the product."""
    return _product(dtype, device, choose_order(device, threads))


@functools.lru_cache(maxsize=2)
def _product(dtype: torch.dtype, device: torch.device, n: int) -> Thunk:
    A = torch.ones(n, n, dtype=dtype, device=device)
    out = torch.empty_like(A)
    return lambda: torch.mm(A, A, out=out)
