"""How engines are found and loaded, and the errors if they are missing."""

from __future__ import annotations

import ctypes
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

import lapgrad
from lapgrad._torch import lu as torch_lu
from lapgrad.distributed import make_grid
from lapgrad.distributed.blockcyclic import cusolvermp, scalapack, scalapack_library
from lapgrad.distributed.blockcyclic.cublasmp import GridProducts, load_bindings
from lapgrad.distributed.blockcyclic.engine import Blocks
from lapgrad.distributed.blockcyclic.layout import Layout, allocate_local

pytestmark = pytest.mark.cpu


@pytest.mark.parametrize(
    ("size", "shape"), [(1, (1, 1)), (2, (1, 2)), (4, (2, 2)), (6, (2, 3)), (7, (1, 7)), (1024, (32, 32))]
)
def test_grids_are_as_square_as_possible(size: int, shape: tuple[int, int]) -> None:
    assert scalapack.choose_shape(size) == shape


def test_missing_packages_are_named_with_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("LAPGRAD_SCALAPACK", raising=False)
    monkeypatch.setattr(scalapack_library, "_list_files", lambda package: iter([tmp_path / "libmkl.so"]))
    with pytest.raises(lapgrad.MissingDependencyError, match=r"pip install 'lapgrad\[scalapack\]'"):
        make_grid(engine="scalapack")
    assert not scalapack_library.is_installed()


def test_a_library_that_is_named_must_have_blacs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LAPGRAD_SCALAPACK", str(tmp_path / "libscalapack.so"))
    with pytest.raises(lapgrad.MissingDependencyError, match="cannot be loaded"):
        make_grid(engine="scalapack")
    monkeypatch.setenv("LAPGRAD_SCALAPACK", "libm.so.6")
    with pytest.raises(lapgrad.MissingDependencyError, match="no BLACS"):
        make_grid(engine="scalapack")


def test_the_launcher_chooses_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under mpiexec with several processes ScaLAPACK is wanted, and its absence is an error."""
    monkeypatch.setattr(scalapack_library, "_list_files", lambda package: iter(()))
    monkeypatch.delenv("LAPGRAD_SCALAPACK", raising=False)
    monkeypatch.setenv("PMI_SIZE", "1")
    assert make_grid().engine.name == "local"
    monkeypatch.setenv("PMI_SIZE", "2")
    with pytest.raises(lapgrad.MissingDependencyError):
        make_grid()


def test_parts_of_a_process_that_32_bits_do_not_count() -> None:
    scalapack.check_size(Layout(90_000, 90_000, 128, 128, 2, 2, 0, 0))
    with pytest.raises(lapgrad.SizeError, match="more processes"):
        scalapack.check_size(Layout(100_000, 100_000, 128, 128, 1, 2, 0, 0))


def test_a_grid_of_gpus_needs_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(lapgrad.DeviceError, match="sees no GPU"):
        make_grid(device="cuda", engine="cusolvermp")


def test_missing_nvmath_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvmath", None)
    with pytest.raises(lapgrad.MissingDependencyError, match="pip install 'nvmath-python"):
        load_bindings("cusolverMp")


class Bindings:
    """``nvmath.bindings.cusolverMp`` and ``cublasMp`` for one process, computing in the memory of the CPU.

    The order and number of arguments are those of nvmath-python 1.0.
    """

    def __init__(self) -> None:
        self.descriptors: dict[int, tuple[int, ...]] = {}
        self.GridMapping = types.SimpleNamespace(ROW_MAJOR=1)

    class cuSOLVERMpError(Exception):  # noqa: N801
        pass

    def create_matrix_desc(self, grid: int, kind: int, m: int, n: int, mb: int, nb: int, *rest: int) -> int:
        assert len(rest) == 3
        self.descriptors[len(self.descriptors) + 1] = (kind, m, n, rest[2])
        return len(self.descriptors)

    def matrix_descriptor_create(self, m: int, n: int, mb: int, nb: int, *rest: int) -> int:
        _, _, leading, kind, _ = rest
        return self.create_matrix_desc(0, kind, m, n, mb, nb, 0, 0, leading)

    def destroy_matrix_desc(self, descriptor: int) -> None:
        assert descriptor in self.descriptors

    matrix_descriptor_destroy = destroy_matrix_desc

    def potrf_buffer_size(self, *arguments: Any) -> tuple[int, int]:
        assert len(arguments) == 8
        return 16, 0

    def potrs_buffer_size(self, *arguments: Any) -> tuple[int, int]:
        assert len(arguments) == 13
        return 16, 8

    def trsm_buffer_size(self, *arguments: Any) -> tuple[int, int]:
        assert len(arguments) == 17
        return 16, 8

    def gemm_buffer_size(self, *arguments: Any) -> tuple[int, int]:
        assert len(arguments) == 21
        return 16, 8

    def geadd_buffer_size(self, *arguments: Any) -> tuple[int, int]:
        assert len(arguments) == 14
        return 16, 8

    def potrf(self, handle: int, lower: int, n: int, a: int, *rest: int) -> None:
        _, _, descriptor, kind, _, device_bytes, _, host_bytes, status = rest
        assert (device_bytes, host_bytes, lower, kind) == (16, 0, 0, self.descriptors[descriptor][0])
        A = self._view(a, descriptor)
        factor, info = torch.linalg.cholesky_ex(A)
        if int(info):
            A.copy_(factor)
            A[int(info) - 1 :, int(info) - 1] = torch.nan  # the root of a negative number
            raise self.cuSOLVERMpError("INTERNAL_ERROR (7)")
        A.copy_(factor)
        ctypes.c_int.from_address(status).value = 0

    def potrs(self, handle: int, lower: int, n: int, columns: int, a: int, *rest: int) -> None:
        _, _, of_a, b, _, _, of_b, _, _, device_bytes, _, host_bytes, status = rest
        assert (device_bytes, host_bytes) == (16, 8)
        B = self._view(b, of_b)
        B.copy_(torch.cholesky_solve(B, self._view(a, of_a).tril()))
        ctypes.c_int.from_address(status).value = 0

    def trsm(self, handle: int, side: int, lower: int, transpose: int, *rest: int) -> None:
        unit, _, _, alpha, a, _, _, of_a, b, _, _, of_b, compute, _, _, _, _ = rest
        assert (unit, lower, compute, ctypes.c_double.from_address(alpha).value) == (0, 0, 70, 1.0)
        factor, B = self._view(a, of_a).tril(), self._view(b, of_b)
        factor = factor.mT if transpose else factor
        B.copy_(torch.linalg.solve_triangular(factor, B, upper=bool(transpose), left=not side))

    def gemm(self, handle: int, ta: int, tb: int, m: int, n: int, k: int, *rest: int) -> None:
        alpha, a, _, _, of_a, b, _, _, of_b, beta, c, _, _, of_c, compute, *_ = rest
        assert ctypes.c_double.from_address(alpha).value == 1.0
        assert ctypes.c_double.from_address(beta).value == 0.0
        A, B, C = self._view(a, of_a), self._view(b, of_b), self._view(c, of_c)
        A, B = A.mT if ta else A, B.mT if tb else B
        assert (A.shape, B.shape, compute) == ((m, k), (k, n), 70)
        C.copy_(A @ B)

    def geadd(self, handle: int, transpose: int, m: int, n: int, *rest: int) -> None:
        alpha, a, _, _, of_a, _, c, _, _, of_c, *_ = rest
        assert (transpose, ctypes.c_double.from_address(alpha).value) == (1, 1.0)
        self._view(c, of_c).copy_(self._view(a, of_a).mT)

    def create(self, *arguments: int) -> int:
        return 1

    def grid_create(self, rows: int, columns: int, layout: int, communicator: int) -> int:
        return 1

    def _view(self, address: int, descriptor: int) -> torch.Tensor:
        """Return the matrix at an address, stored by columns."""
        _, m, n, leading = self.descriptors[descriptor]
        memory = (ctypes.c_double * (leading * (n - 1) + m)).from_address(address)
        return torch.frombuffer(memory, dtype=torch.float64).as_strided((m, n), (1, leading))


class EngineWithoutGpu(cusolvermp.CusolverMpEngine):
    """The engine as it is, except that memory and streams are those of the CPU."""

    def __init__(self, bindings: Bindings) -> None:
        self.device, self.rank, self.size = torch.device("cpu"), 0, 1
        self.shape, self.position = (1, 1), (0, 0)
        self._library, self._handle, self._grid = bindings, 1, 1

    def _run(self, sizes: tuple[int, int], call: Any) -> None:
        on_device, on_host = (torch.empty(max(1, size), dtype=torch.uint8) for size in sizes)
        call(on_device.data_ptr(), sizes[0], on_host.data_ptr(), sizes[1])


def make_blocks(values: torch.Tensor, block: int = 8) -> Blocks:
    layout = Layout(*values.shape, block, block, 1, 1, 0, 0)
    return Blocks(layout, allocate_local(layout, values.dtype, values.device).copy_(values))


def make_matrix(n: int) -> torch.Tensor:
    factor = torch.randn(n, n, dtype=torch.float64)
    return factor @ factor.mT / n + torch.eye(n, dtype=torch.float64)


def test_calls_of_cusolvermp() -> None:
    """Arguments and workspaces of every routine, with the bindings replaced."""
    engine, A = EngineWithoutGpu(Bindings()), make_matrix(21)
    blocks, right = make_blocks(A), make_blocks(torch.randn(21, 3, dtype=torch.float64))
    wanted = torch_lu.solve(A, right.local)
    assert engine.potrf(blocks) == 0
    engine.potrs(blocks, right)
    assert torch.allclose(right.local, wanted)
    engine.potri(blocks)
    assert torch.allclose(blocks.local.tril(), torch_lu.inv(A).tril())


def test_cusolvermp_names_the_minor_that_failed() -> None:
    """The library reports an internal error; the first pivot that is not positive is the answer."""
    engine, A = EngineWithoutGpu(Bindings()), make_matrix(21)
    A[12, 12] = -9.0
    assert engine.potrf(make_blocks(A)) == 13


def test_cusolvermp_leaves_a_nan_where_it_was() -> None:
    """The caller names the pivot; see ``check_factor``."""
    engine, A = EngineWithoutGpu(Bindings()), make_matrix(21)
    A[12, 12] = torch.nan
    blocks = make_blocks(A)
    assert engine.potrf(blocks) == 0
    assert blocks.local[12, 12].isnan()


def test_calls_of_cublasmp(monkeypatch: pytest.MonkeyPatch) -> None:
    bindings = Bindings()
    monkeypatch.setattr("lapgrad.distributed.blockcyclic.cublasmp.load_bindings", lambda name: bindings)
    products = GridProducts(0, (1, 1), 0, EngineWithoutGpu(bindings)._run)
    L, B = make_blocks(make_matrix(9).tril()), torch.randn(9, 4, dtype=torch.float64)
    for transpose in (False, True):
        for rightside in (False, True):
            values = make_blocks(B.mT if rightside else B)
            products.trsm(L, values, transpose=transpose, rightside=rightside)
            expected = lapgrad.trsm(
                L.local, B.mT if rightside else B, transpose=transpose, rightside=rightside
            )
            assert torch.allclose(values.local, expected)
    C = make_blocks(torch.empty(4, 9, dtype=torch.float64))
    products.gemm(make_blocks(B), L, C, transpose_a=True, transpose_b=True)
    assert torch.allclose(C.local, B.mT @ L.local.mT)
    products.transpose(make_blocks(B), C)
    assert torch.equal(C.local, B.mT)
