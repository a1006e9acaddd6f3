"""Every path through the compiled core with small matrices: instruction sets, plan entries and threads."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import pytest
import torch
from device import DEVICE

from lapgrad._kernels import cpu as _cpu

NEVER, ALWAYS = 0, 10**6
FROM_THE_FIRST = 1

#: Solves and factorisations by the library that gives BLAS, at every order that has no kernel of its own.
VENDOR = {
    "vendor_trsm_f32": FROM_THE_FIRST,
    "vendor_trsm_f64": FROM_THE_FIRST,
    "vendor_potrf_few_f32": FROM_THE_FIRST,
    "vendor_potrf_few_f64": FROM_THE_FIRST,
}

#: Entries of the plan (csrc/base/plan.h), and the number of threads.
PATHS: dict[str, tuple[int, dict[str, int]]] = {
    "default": (1, {}),
    "no lanes": (1, {"lane_order_f32": NEVER, "lane_order_f64": NEVER}),
    "own product": (1, {"own_product_f32": ALWAYS, "own_product_f64": ALWAYS}),
    "own product in blocks": (1, {"own_product_f32": NEVER, "own_product_f64": NEVER, "own_blocks": 1}),
    "BLAS product": (1, {"own_product_f32": NEVER, "own_product_f64": NEVER, "own_blocks": NEVER}),
    "vendor routines": (1, VENDOR),
    "vendor routines, two threads": (2, {**VENDOR, "serial_order_few": NEVER, "vendor_trsm_serial": NEVER}),
    "no vendor routines": (2, dict.fromkeys(VENDOR, NEVER)),
    "narrow solves": (1, {"narrow_solve": FROM_THE_FIRST}),
    "narrow solves beside BLAS products": (1, {"narrow_solve": FROM_THE_FIRST, "own_blocks": NEVER}),
    "small tiles": (1, {"smallest_tile": 32, "largest_tile": 32, "lq_panel": 8}),
    "two threads": (2, {}),
    "two threads, serial items": (2, {"serial_order_few": ALWAYS, "serial_order_many": ALWAYS}),
    "two threads inside": (
        2,
        {
            "serial_order_few": NEVER,
            "serial_order_many": NEVER,
            "lane_order_f32": NEVER,
            "lane_order_f64": NEVER,
            "slice_columns": 3,
            "smallest_tile": 32,
            "largest_tile": 32,
        },
    ),
}

#: Every path on the best instruction set, and on the others those that run kernels compiled for each set.
PATHS_AND_ISAS = [
    *((path, "") for path in PATHS),
    *((path, isa) for path in ("default", "no lanes", "own product") for isa in _cpu.ISA_VARIANTS),
]

#: The routines that the entries of the plan are about; the others are built on these.
_ROUTINES = ("potrf", "potrf_ex", "trsm", "trmm", "gemmt", "syrk", "copyltu", "potri")
_PATHS_OF_OTHERS = [
    *(("default", isa) for isa in ("", "avx2", "baseline")),
    *(
        (path, "")
        for path in ("no lanes", "two threads", "two threads inside", "vendor routines, two threads")
    ),
]


def list_paths(names: Iterable[str]) -> list[tuple[str, str, str]]:
    """Operator, path and instruction set: every path for those routines, the main ones for the others."""
    return [
        (name, *path)
        for name in names
        for path in (PATHS_AND_ISAS if name in _ROUTINES else _PATHS_OF_OTHERS)
    ]


@contextlib.contextmanager
def take_path(name: str, isa: str = "") -> Iterator[None]:
    """While active, the core takes that path on that instruction set ("": the best one).

    Skips the test on a CPU that has no such instructions. On another device there is one path, the default.
    """
    if DEVICE.type != "cpu":
        assert (name, isa) == ("default", "")
        yield
        return
    threads, entries = PATHS[name]
    if isa and not _cpu.core.isa_supported(isa):
        pytest.skip(f"this CPU has no {isa}")
    with set_core(entries, threads, isa):
        yield


@contextlib.contextmanager
def set_core(entries: dict[str, int], threads: int, isa: str = "") -> Iterator[None]:
    """While active, the core has these entries in its plan, that many threads and that instruction set.

    Without the core, and on another device, only the number of threads is set.
    """
    core = _cpu.core if DEVICE.type == "cpu" and _cpu.is_available() else None
    threads_before = torch.get_num_threads()
    plan, isa_before = (core.plan(), core.isa()) if core else ({}, "")
    try:
        torch.set_num_threads(threads)
        if core:
            assert core.select_isa(isa)
            for entry, value in entries.items():
                core.set_plan(entry, value)
        yield
    finally:
        torch.set_num_threads(threads_before)
        if core:
            for entry, value in plan.items():
                core.set_plan(entry, value)
            assert core.select_isa(isa_before)
