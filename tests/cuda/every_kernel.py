"""Every CUDA kernel file at small sizes, forward and backward, through the public operators.

    python tests/cuda/every_kernel.py [GROUP ...]

runs groups of operators on the GPU, all unless some are named, and fails where one does not launch all
kernels of the files that it stands for.
``sanitize.py`` runs it under NVIDIA's compute-sanitizer, ``test_every_kernel.py`` on the CPU.
"""

from __future__ import annotations

import ctypes
import functools
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import stand_ins
import torch
from torch import Tensor

import lapgrad
from lapgrad._kernels.cuda import thresholds as _thresholds
from lapgrad._kernels.cuda.runtime import compiler as _compile
from lapgrad._kernels.cuda.runtime import libraries as _libraries
from lapgrad.models import GPRegression
from lapgrad.models.kernels import RBF

#: (file, kernel)
Kernel = tuple[str, str]


def list_kernels_of_sources() -> set[Kernel]:
    """Return all kernels that the .cu files define."""
    found = set()
    for source in _compile.SOURCES.glob("*.cu"):
        for definition in source.read_text().split("__global__")[1:]:
            named = re.match(r"\s+void\s+(?:__launch_bounds__\([^{;]*?\)\s+)?(\w+)\(", definition)
            assert named, f"a kernel without a name in {source.name}: {definition[:80]}"
            found.add((source.stem, named[1]))
    return found


def identify_kernel(stem: str, expression: str) -> Kernel:
    """Return the kernel that an instance like ``syevd<double, 8, 8, true>`` belongs to."""
    return stem, expression.partition("<")[0]


class Draw:
    """Draws operands of one dtype on one device from a fixed seed."""

    def __init__(self, device: str, dtype: torch.dtype) -> None:
        self._device, self._dtype = device, dtype
        self._generator = torch.Generator().manual_seed(0)

    def normal(self, *shape: int) -> Tensor:
        drawn = torch.randn(shape, dtype=torch.float64, generator=self._generator)
        return drawn.to(self._device, self._dtype).requires_grad_()

    def positive_definite(self, *shape: int) -> Tensor:
        """(..., n, n)"""
        root = self.normal(*shape, shape[-1]).detach()
        return self._plus_identity(root @ root.mT / shape[-1])

    def triangle(self, *shape: int) -> Tensor:
        """Return a lower triangle (..., n, n); the numbers above its diagonal must not be read."""
        return self._plus_identity(0.2 * self.normal(*shape, shape[-1]).detach() / shape[-1] ** 0.5)

    def _plus_identity(self, A: Tensor) -> Tensor:
        return (A + torch.eye(A.shape[-1]).to(A)).requires_grad_()


def pull_back(results: Tensor | Sequence[Tensor], *operands: Tensor) -> None:
    """Compute the gradients of the operands for random cotangents."""
    outputs = [results] if isinstance(results, Tensor) else list(results)
    cotangents = [torch.cos(torch.arange(1, X.numel() + 1).to(X)).view(X.shape) for X in outputs]
    torch.autograd.grad(outputs, operands, cotangents, retain_graph=True)


def run_cholesky(draw: Draw) -> None:
    for items, n in ((5, 3), (5, 7), (5, 13), (3, 30), (2, 40), (2, 100), (2, 200), (1, 201)):
        A, lower = draw.positive_definite(items, n), n % 3 != 0
        pull_back(lapgrad.potrf(A, lower=lower), A)
    A, Y = draw.positive_definite(200), draw.normal(200, 2)
    pull_back(lapgrad.fused.mvn_nll(A, Y), A, Y)
    for lower in (True, False):
        L = draw.triangle(200)
        pull_back(lapgrad.potri(L, lower=lower), L)
        lapgrad.potri(L.detach(), lower=lower, overwrite=True)


def run_triangular(draw: Draw) -> None:
    for items, n, columns in ((5, 3, 4), (5, 12, 7), (3, 40, 9), (1, 300, 20)):
        for lower, transpose, rightside in ((True, False, False), (False, True, True), (True, True, False)):
            L = draw.triangle(items, n)
            A = draw.normal(items, columns, n) if rightside else draw.normal(items, n, columns)
            for operator in (lapgrad.trsm, lapgrad.trmm):
                pull_back(operator(L, A, lower=lower, transpose=transpose, rightside=rightside), L, A)


def run_products(draw: Draw) -> None:
    A, B = draw.normal(150, 30), draw.normal(30, 150)
    pull_back(lapgrad.syrk(A), A)
    for lower in (True, False):
        C = draw.normal(150, 150)
        pull_back(lapgrad.gemmt(A, B, lower=lower), A, B)
        pull_back(lapgrad.copyltu(C, lower=lower), C)


def run_packing(draw: Draw) -> None:
    for n, offset, lower in ((20, 0, True), (50, 0, False), (50, -2, True), (70, 1, False)):
        A = draw.normal(3, n, n)
        v = lapgrad.extracttrian(A, offset=offset, lower=lower)
        pull_back(lapgrad.maketrian(v, offset=offset, lower=lower), A)
    L = draw.triangle(3, 20)
    pull_back(lapgrad.potri(L), L)


def run_small_products(draw: Draw) -> None:
    """The kernels of planned shortcuts, and that of larger symmetric products."""
    from lapgrad._kernels.cuda.shortcuts import products
    from lapgrad._kernels.cuda.shortcuts.planned import run_planned
    from lapgrad._kernels.cuda.shortcuts.table import SHORTCUTS

    with torch.no_grad():
        A, L, C = draw.normal(3, 40, 20), draw.normal(3, 20, 20), draw.normal(3, 70, 70)
        for name, arguments in (
            ("syrk", (A, False)),
            ("gemmt", (A, A, True, False, True, 1.0)),
            ("copyltu", (L, True)),
            ("copyltu", (C, True)),
            ("extractdiag", (L,)),
            ("makediag", (L[0],)),
        ):
            plan = SHORTCUTS[name].planned
            assert plan is not None
            run_planned(plan, *arguments)
        products.multiply_by_transpose(A, False)
        large = draw.normal(130, 130)
        plan = SHORTCUTS["trmm"].planned
        assert plan is not None
        run_planned(plan, large, large.clone(), True, False, False)


def run_packing_and_small_products(draw: Draw) -> None:
    run_packing(draw)
    run_small_products(draw)


def run_logarithms(draw: Draw) -> None:
    for n in (20, 150):
        L = draw.triangle(3, n)
        pull_back(lapgrad.sumlogdiag(L), L)


def run_orthogonal(draw: Draw) -> None:
    for shape in (
        (5, 3, 4),
        (5, 7, 13),
        (5, 16, 9),
        (3, 40, 50),
        (2, 20, 100),
        (4, 12, 200),
        (2, 40, 140),
        (150, 200),
    ):
        A = draw.normal(*shape)
        Q, L = lapgrad.gelqf(A)
        pull_back((Q, L), A)
        if shape[-2] <= shape[-1]:
            pull_back(lapgrad.gelqf(A, mode="l"), A)


def run_elimination(draw: Draw) -> None:
    for items, n in ((5, 3), (5, 7), (2, 40), (2, 130), (1, 130)):
        A, B = draw.normal(items, n, n), draw.normal(items, n, 3)
        pull_back(lapgrad.det(A), A)
        pull_back(lapgrad.slogdet(A)[1], A)
        pull_back(lapgrad.inverse(A), A)
        for transpose in (False, True):
            pull_back(lapgrad.gesv(A, B, transpose=transpose), A, B)


def run_pivoting(draw: Draw) -> None:
    for items, n, lower in ((3, 7, True), (2, 20, False), (2, 40, True)):
        A = draw.positive_definite(items, n)
        for rank in (n - 1, n):  # the gradient of a square factor has kernels of its own
            pull_back(lapgrad.pstrf(A, rank=rank, lower=lower).L, A)


def run_functions(draw: Draw) -> None:
    A = draw.positive_definite(2, 40)
    for f in ("sqrt", "log", "exp"):
        pull_back(lapgrad.linalg.eigh_fn(A, f), A)
    X = draw.normal(3, 20, 5)
    pull_back(lapgrad.linalg.pca(X, k=2)[:3], X)


def run_eigenvalues(draw: Draw) -> None:
    for items, n, lower in ((9, 5, True), (5, 13, False), (3, 30, True), (3, 50, True)):
        A = draw.positive_definite(items, n)
        pull_back(lapgrad.syevd(A, lower=lower), A)
        pull_back(lapgrad.syevd(A, lower=lower, vectors=False), A)


def run_medium_eigenvalues(draw: Draw) -> None:
    A = draw.positive_definite(2, 66)
    pull_back(lapgrad.syevd(A, lower=False), A)
    pull_back(lapgrad.syevd(A, vectors=False), A)
    lapgrad.syevd(draw.positive_definite(40).detach())  # one small matrix


def run_singular_values(draw: Draw) -> None:
    for shape in ((5, 6, 8), (5, 40, 5), (5, 12, 12), (3, 10, 40), (3, 20, 30), (2, 20, 50), (2, 50, 34)):
        _run_gesvd(draw, shape)
        _run_gesvd_values(draw, shape)


def run_medium_singular_values(draw: Draw) -> None:
    for shape in ((2, 70, 20), (2, 20, 150), (2, 65, 66), (2, 97, 98)):
        _run_gesvd(draw, shape)
    _run_gesvd_values(draw, (2, 70, 20))


def _run_gesvd(draw: Draw, shape: tuple[int, int, int]) -> None:
    A = draw.normal(*shape)
    found = lapgrad.gesvd(A)
    pull_back(found, A)
    pull_back(found[:1], A)
    pull_back(found[1:2], A)


def _run_gesvd_values(draw: Draw, shape: tuple[int, int, int]) -> None:
    items, m, n = shape
    rank = min(m, n) - 2
    A, left, right = (draw.normal(items, *part).detach() for part in ((m, n), (m, rank), (rank, n)))
    lapgrad.gesvd(A, vectors=False)
    # Zero singular values: their rows of vectors are completed. One item has none, but its threads must reach
    # the same barriers.
    less = left @ right
    less[-1] = A[-1]
    lapgrad.gesvd(less)


def run_filters(draw: Draw) -> None:
    for series, times, n, p, varies in (
        (3, 5, 3, 1, False),
        (2, 6, 7, 5, True),
        (2, 4, 12, 3, False),
        (1, 3, 20, 10, True),
    ):
        models, steps = (series, times) if varies else (1, 1)
        y, m = draw.normal(series, times, p), draw.normal(series, n)
        y.detach()[0, 1:, 0] = torch.nan  # missing
        A, B = draw.triangle(models, steps, n), draw.normal(models, steps, p, n)
        Q, R = draw.positive_definite(models, steps, n), draw.positive_definite(models, steps, p)
        operands = y, A, B, Q, R, m, draw.positive_definite(series, n)
        pull_back(lapgrad.fused.kalman_nll(*operands), *operands)


def run_kernel_matrices(draw: Draw) -> None:
    X, Z = draw.normal(150, 2), draw.normal(40, 2)
    kernel = RBF(lengthscale=[0.5, 0.7]).to(X)
    pull_back((kernel(X), kernel(X, Z)), X, Z, *kernel.parameters())
    model = GPRegression(X.detach(), X[:, 0].detach(), kernel, noise_var=0.1)
    pull_back(model.loss(), *model.parameters())
    noise = torch.full_like(X[0, 0], 0.1)
    pull_back(lapgrad.fused.sgp_nll(kernel, Z, X, X.detach(), noise), Z, *kernel.parameters())


#: Groups of operators, and kernel files: a group must launch every kernel in its files.
GROUPS: dict[str, tuple[Callable[[Draw], None], tuple[str, ...]]] = {
    "cholesky": (run_cholesky, ("potrf_batch", "triangle")),
    "triangular": (run_triangular, ("triangular_batch",)),
    "products": (run_products, ()),
    "packing": (run_packing_and_small_products, ("packing", "trmm_tiles")),
    "logarithms": (run_logarithms, ("sumlogdiag",)),
    "orthogonal": (run_orthogonal, ("gelqf_batch", "gelqf_panel", "gelqf_vjp_batch", "gelqf_wide")),
    "elimination": (run_elimination, ("lu_batch", "lu_panel", "lu_solve_batch")),
    "pivoting": (run_pivoting, ("pstrf_batch",)),
    "functions": (run_functions, ("centre", "eigh_fn")),
    "eigenvalues": (run_eigenvalues, ("spectral_ties", "syevd_batch", "syevd_vjp_batch")),
    "singular_values": (run_singular_values, ("gesvd_batch", "gesvd_vjp_batch")),
    "medium_singular_values": (run_medium_singular_values, ("gesvd_medium", "gesvd_vjp_tiles")),
    "medium_eigenvalues": (run_medium_eigenvalues, ("syevd_library", "syevd_vjp_tiles")),
    "filters": (run_filters, ("kalman_nll",)),
    "kernel_matrices": (run_kernel_matrices, ("kernel_matrix", "sgp_bound")),
}


def run(name: str, draw: Draw, launched: set[Kernel]) -> None:
    """Run a group, and check that it launched every kernel of its files."""
    group, stems = GROUPS[name]
    with use_small_blocks():
        group(draw)
    missing = {kernel for kernel in list_kernels_of_sources() if kernel[0] in stems} - launched
    assert not missing, f"{name} has not launched {sorted(missing)}"


@contextmanager
def use_small_blocks() -> Iterator[None]:
    """While active, algorithms for large matrices use small blocks, so that small matrices have several."""
    orders = ("REVERSE_BLOCK", "SOLVE_BLOCK", "INVERSE_BLOCK", "ORTHOGONALISE_BLOCK", "PRODUCT_CUT")
    small = {**dict.fromkeys(orders, 128), "SOLVE_BY_BLOCKS_FROM": 128, "SOLVE_BY_BLOCKS_COLUMNS": 8}
    small |= {"SPECTRAL_VJP_SMALL": 32, "SPECTRAL_VJP_UNWAITED": 1, "PSTRF_IN_BLOCK": 32}
    with mock.patch.multiple(_thresholds, **small):
        yield


@contextmanager
def record_launches() -> Iterator[set[Kernel]]:
    """Yield the set of kernels that were launched while this context was active."""
    launched: set[Kernel] = set()
    by_handle: dict[int, Kernel] = {}
    load = _compile.load_kernel

    @functools.wraps(load)
    def remember(stem: str, expression: str, *place: Any) -> Any:
        kernel = load(stem, expression, *place)
        by_handle[int(kernel.handle)] = identify_kernel(stem, expression)
        return kernel

    launch_kernel = ctypes.CDLL("libcuda.so.1").cuLaunchKernel
    pointer, number = ctypes.c_void_p, ctypes.c_uint
    signature = ctypes.CFUNCTYPE(ctypes.c_int, pointer, *[number] * 7, pointer, pointer, pointer)
    launch_kernel.argtypes = signature._argtypes_

    def launch(handle: int, *rest: Any) -> int:
        launched.add(by_handle[handle])
        status: int = launch_kernel(handle, *rest)
        return status

    callback = signature(launch)
    _libraries.bind_driver()
    with (
        stand_ins.bind_to_core({"cuLaunchKernel": callback}),
        mock.patch.object(_compile, "load_kernel", remember),
    ):
        yield launched


def main() -> None:
    """Run the groups named on the command line."""
    with record_launches() as launched:
        for name in sys.argv[1:] or GROUPS:
            for dtype in (torch.float64, torch.float32):
                run(name, Draw("cuda", dtype), launched)
        torch.cuda.synchronize()
    print(f"launched {len(launched)} kernels")


if __name__ == "__main__":
    main()
