"""Block-cyclic matrices on simulated grids: index maps, operators with gradients, and the criterion."""

from __future__ import annotations

import pytest
import torch
from simulated_grid import run_on_grid
from tolerances import ON_A_GRID, assert_close
from torch import Tensor

import lapgrad
from lapgrad._torch import lu as torch_lu
from lapgrad.distributed import BlockCyclicMatrix, ProcessGrid, make_grid, mvn_nll, potrf, potri, trsm
from lapgrad.distributed.blockcyclic import kernel_blocks
from lapgrad.distributed.blockcyclic.engine import Blocks
from lapgrad.distributed.blockcyclic.layout import Layout, count_local, list_local
from lapgrad.models.kernels import RBF, Constant, Linear, Matern12, White

GRIDS = [(1, 1), (1, 2), (2, 1), (2, 2), (4, 1), (2, 3)]
pytestmark = pytest.mark.cpu


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 64, 101])
@pytest.mark.parametrize(("block", "processes"), [(1, 1), (3, 2), (4, 4), (8, 3), (128, 2)])
def test_every_index_belongs_to_one_process(count: int, block: int, processes: int) -> None:
    parts = [list_local(count, block, process, processes) for process in range(processes)]
    assert [len(part) for part in parts] == [
        count_local(count, block, p, processes) for p in range(processes)
    ]
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(count))
    for process, part in enumerate(parts):
        assert torch.equal(part, part.sort().values)
        for position, index in enumerate(part.tolist()):
            assert index // block % processes == process
            assert index // (block * processes) * block + index % block == position


@pytest.mark.parametrize("shape", GRIDS)
def test_diagonal_entries_belong_to_one_process(shape: tuple[int, int]) -> None:
    found = []
    for rank in range(shape[0] * shape[1]):
        layout = Layout(23, 23, 3, 3, *shape, *divmod(rank, shape[1]))
        index, row, column = layout.list_diagonal()
        assert torch.equal(layout.list_rows()[row], index)
        assert torch.equal(layout.list_columns()[column], index)
        found.append(index)
    assert torch.equal(torch.cat(found).sort().values, torch.arange(23))


@pytest.mark.parametrize("shape", GRIDS)
@pytest.mark.parametrize("size", [(0, 0), (1, 1), (5, 13), (37, 11)])
def test_matrices_come_back_as_they_were(shape: tuple[int, int], size: tuple[int, int]) -> None:
    A = torch.randn(size, dtype=torch.float64)
    weights = torch.randn(size, dtype=torch.float64)

    def distribute(grid: ProcessGrid) -> tuple[Tensor, Tensor, int]:
        leaf = A.clone().requires_grad_()
        spread = BlockCyclicMatrix.from_dense(leaf, grid)
        whole = spread.to_dense()
        (whole * weights).sum().backward()
        assert leaf.grad is not None
        return whole.detach(), leaf.grad, spread.local.numel()

    results = run_on_grid(shape, 4, distribute)
    for whole, gradient, _ in results:
        assert torch.equal(whole, A)
        assert torch.equal(gradient, weights)
    assert sum(count for _, _, count in results) == A.numel()


def make_positive_definite(n: int) -> Tensor:
    factor = torch.randn(n, n, dtype=torch.float64)
    return factor @ factor.mT / n + torch.eye(n, dtype=torch.float64)


@pytest.mark.parametrize("shape", GRIDS)
@pytest.mark.parametrize("n", [1, 21])
def test_potrf_and_potri(shape: tuple[int, int], n: int) -> None:
    A = make_positive_definite(n)
    of_factor, of_inverse = torch.randn(2, n, n, dtype=torch.float64)

    def evaluate(grid: ProcessGrid) -> tuple[Tensor, Tensor, Tensor]:
        leaf = A.clone().requires_grad_()
        L = potrf(BlockCyclicMatrix.from_dense(leaf, grid))
        B = potri(L)
        factor, inverted = L.to_dense(), B.to_dense()
        ((factor * of_factor).sum() + (inverted * of_inverse).sum()).backward()
        assert leaf.grad is not None
        return factor.detach(), inverted.detach(), leaf.grad

    leaf = A.clone().requires_grad_()
    L = lapgrad.potrf(leaf)
    B = lapgrad.potri(L)
    ((L * of_factor).sum() + (B * of_inverse).sum()).backward()
    assert leaf.grad is not None
    for factor, inverted, gradient in run_on_grid(shape, 4, evaluate):
        assert_close(factor, L.detach())
        assert_close(inverted, B.detach())
        assert_close(gradient, leaf.grad)


@pytest.mark.parametrize("shape", GRIDS)
@pytest.mark.parametrize("n", [1, 5, 24, 53])
@pytest.mark.parametrize("block", [1, 4, 64])
def test_factor_and_inverse(shape: tuple[int, int], n: int, block: int) -> None:
    """Factor and inverse are computed from the lower triangle, whatever the upper one contains."""
    A = make_positive_definite(n)
    above = torch.full_like(A, torch.nan).triu(1)

    def invert(grid: ProcessGrid) -> tuple[Tensor, Tensor]:
        spread = BlockCyclicMatrix.from_dense(A.tril() + above, grid)
        blocks = Blocks(spread.layout, spread.local)
        assert grid.engine.potrf(blocks) == 0
        factor = spread.to_dense().detach().tril()
        grid.engine.potri(blocks)
        return factor, spread.to_dense().tril()

    for factor, inverted in run_on_grid(shape, block, invert):
        assert_close(factor, torch.linalg.cholesky(A))
        assert_close(inverted, torch_lu.inv(A).tril())


@pytest.mark.parametrize("shape", GRIDS)
@pytest.mark.parametrize("row", [0, 5, 8, 20])
@pytest.mark.parametrize("entry", [-3.0, torch.nan, torch.inf])
def test_status_of_the_factor(shape: tuple[int, int], row: int, entry: float) -> None:
    """All processes return the leading minor; a pivot that is not finite is NaN, and no other one is."""
    A = make_positive_definite(21)
    A[row, row] = entry

    def factor(grid: ProcessGrid) -> tuple[int, Tensor]:
        spread = BlockCyclicMatrix.from_dense(A, grid)
        status = grid.engine.potrf(Blocks(spread.layout, spread.local))
        return status, spread.to_dense().diagonal()

    for status, diagonal in run_on_grid(shape, 4, factor):
        if entry < 0.0:
            assert status == row + 1
        else:
            assert status == 0
            assert diagonal.isnan().nonzero().tolist() == [[row]]


def test_inverse_of_an_ill_conditioned_matrix() -> None:
    """The residual is as small as that of LAPACK's inverse: about eps times the condition number, 1e8."""
    X = torch.linspace(0, 1, 60, dtype=torch.float64)[:, None]
    A = RBF(lengthscale=0.2).double()(X).detach() + 1e-7 * torch.eye(60, dtype=torch.float64)
    by_lapack = torch.cholesky_inverse(torch.linalg.cholesky(A))

    def invert(grid: ProcessGrid) -> Tensor:
        L = potrf(BlockCyclicMatrix.from_dense(A, grid))
        return potri(L).to_dense()

    identity = torch.eye(60, dtype=torch.float64)
    wanted = (A @ by_lapack - identity).abs().max()
    for found in run_on_grid((2, 2), 8, invert):
        assert (A @ found - identity).abs().max() < 10.0 * wanted


@pytest.mark.parametrize("shape", GRIDS)
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("rightside", [False, True])
def test_trsm(shape: tuple[int, int], transpose: bool, rightside: bool) -> None:
    L = torch.linalg.cholesky(make_positive_definite(13))
    A = torch.randn((6, 13) if rightside else (13, 6), dtype=torch.float64)
    weights = torch.randn_like(A)

    def evaluate(grid: ProcessGrid) -> list[Tensor]:
        leaves = [L.clone().requires_grad_(), A.clone().requires_grad_()]
        X = trsm(
            *(BlockCyclicMatrix.from_dense(leaf, grid) for leaf in leaves),
            transpose=transpose,
            rightside=rightside,
        ).to_dense()
        return [X.detach(), *torch.autograd.grad((X * weights).sum(), leaves)]

    leaves = [L.clone().requires_grad_(), A.clone().requires_grad_()]
    X = lapgrad.trsm(*leaves, transpose=transpose, rightside=rightside)
    expected = [X.detach(), *torch.autograd.grad((X * weights).sum(), leaves)]
    for found in run_on_grid(shape, 4, evaluate):
        for actual, wanted in zip(found, expected, strict=True):
            assert_close(actual, wanted)


def make_kernel(name: str) -> lapgrad.models.kernels.Kernel:
    kernels = {
        "rbf": lambda: RBF(lengthscale=[0.7, 1.3]),
        "sum": lambda: Matern12(lengthscale=0.8) + 0.3 * Linear() + White(0.2),
        "constant": lambda: Constant(0.5) + RBF(active_dims=[1]),
    }
    return kernels[name]().double()


def collect_gradients(loss: Tensor, kernel: torch.nn.Module, *tensors: Tensor) -> list[Tensor]:
    parameters = list(kernel.parameters())
    found = torch.autograd.grad(loss, [*parameters, *tensors], allow_unused=True)
    return [
        torch.zeros_like(tensor) if gradient is None else gradient
        for tensor, gradient in zip([*parameters, *tensors], found, strict=True)
    ]


@pytest.mark.parametrize("shape", GRIDS)
@pytest.mark.parametrize("name", ["rbf", "sum", "constant"])
@pytest.mark.parametrize("outputs", [1, 3])
def test_criterion(shape: tuple[int, int], name: str, outputs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Value and all gradients are those of the whole matrix in one process."""
    monkeypatch.setitem(kernel_blocks._ELEMENTS, "cpu", 64)  # several panels
    X, Y = torch.randn(29, 2, dtype=torch.float64), torch.randn(29, outputs, dtype=torch.float64)
    noise = torch.tensor(0.3, dtype=torch.float64) if outputs == 1 else 0.1 + torch.rand(29).double()

    def make_leaves() -> list[Tensor]:
        return [tensor.clone().requires_grad_() for tensor in (X, Y, noise)]

    def evaluate(grid: ProcessGrid) -> list[Tensor]:
        kernel, (points, outputs_, added) = make_kernel(name), make_leaves()
        loss = mvn_nll(kernel, points, outputs_, added, grid=grid)
        return [loss.detach(), *collect_gradients(loss, kernel, points, outputs_, added)]

    kernel, (points, targets, added) = make_kernel(name), make_leaves()
    A = kernel(points) + torch.diag_embed(added.expand(29))
    loss = lapgrad.fused.mvn_nll(A, targets)
    expected = [loss.detach(), *collect_gradients(loss, kernel, points, targets, added)]
    results = run_on_grid(shape, 4, evaluate)
    for found in results:
        for actual, wanted, first in zip(found, expected, results[0], strict=True):
            assert_close(actual, wanted, ON_A_GRID)
            assert torch.equal(actual, first)  # optimisers on different processes stay in step


def test_a_second_backward_gives_the_same() -> None:
    X, kernel = torch.randn(9, 1, dtype=torch.float64), RBF().double()
    loss = mvn_nll(kernel, X, X, 0.1, grid=make_grid(block=4))
    first = torch.autograd.grad(loss, list(kernel.parameters()), retain_graph=True)
    second = torch.autograd.grad(2.0 * loss, list(kernel.parameters()))
    for one, other in zip(first, second, strict=True):
        assert_close(other, 2.0 * one)


def test_float32() -> None:
    X, kernel = torch.randn(20, 2), RBF()
    expected = lapgrad.fused.mvn_nll(kernel(X) + 0.5 * torch.eye(20), X)

    def evaluate(grid: ProcessGrid) -> Tensor:
        return mvn_nll(RBF(), X, X, 0.5, grid=grid)

    for found in run_on_grid((2, 2), 4, evaluate):
        assert_close(found.detach(), expected.detach())


@pytest.mark.parametrize("shape", [(1, 1), (2, 2)])
def test_the_minor_that_is_not_positive_is_named_on_every_process(shape: tuple[int, int]) -> None:
    noise = torch.full((15,), 1.0, dtype=torch.float64)
    noise[9] = -3.0

    def evaluate(grid: ProcessGrid) -> tuple[str, int]:
        X = torch.linspace(0, 1, 15, dtype=torch.float64)[:, None]
        with pytest.raises(lapgrad.NotPositiveDefiniteError) as caught:
            mvn_nll(RBF().double(), X, X, noise, grid=grid)
        return str(caught.value), caught.value.minor

    for message, minor in run_on_grid(shape, 4, evaluate):
        assert minor == 10
        assert "leading minor of order 10" in message


@pytest.mark.parametrize("shape", [(1, 1), (2, 2)])
def test_numbers_that_are_not_finite_are_found(shape: tuple[int, int]) -> None:
    noise = torch.ones(15, dtype=torch.float64)
    noise[6] = torch.nan

    def evaluate(grid: ProcessGrid) -> int:
        X = torch.linspace(0, 1, 15, dtype=torch.float64)[:, None]
        with pytest.raises(lapgrad.NonFiniteError) as caught:
            mvn_nll(RBF().double(), X, X, noise, grid=grid)
        return caught.value.pivot

    assert run_on_grid(shape, 4, evaluate) == [7] * (shape[0] * shape[1])


def test_memory_of_the_criterion_is_one_local_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward and backward together: the factor overwrites the covariance, the inverse the factor."""
    from lapgrad.distributed.blockcyclic import mvn_nll as module

    allocated = []
    original = module.allocate_local

    def allocate(layout: Layout, dtype: torch.dtype, device: torch.device) -> Tensor:
        local = original(layout, dtype, device)
        allocated.append(local.numel())
        return local

    monkeypatch.setattr(module, "allocate_local", allocate)
    X = torch.randn(64, 2, dtype=torch.float64)
    mvn_nll(RBF().double(), X, X[:, :1], 0.1, grid=make_grid(block=8)).backward()
    assert sorted(allocated) == [64, 64 * 64]  # the right-hand side, and the matrix


@pytest.mark.parametrize("what", ["value", "shape", "dtype"])
def test_data_that_differ_between_processes_are_an_error(what: str) -> None:
    def check(grid: ProcessGrid) -> str:
        X, differs = torch.zeros(5, 2), grid.rank == 2
        if what == "value":
            X[3, 1] = float(differs)
        elif differs:
            X = X.double() if what == "dtype" else X.mT
        with pytest.raises(lapgrad.OptionError) as caught:
            grid.check_replicated("GPRegression", {"y": torch.ones(5), "X": X})
        return str(caught.value)

    for message in run_on_grid((2, 2), 4, check):
        assert "X must be the same on all processes" in message
        assert "1 of 4" in message


def test_mistakes() -> None:
    grid = make_grid(block=4)
    square = BlockCyclicMatrix.from_dense(torch.eye(5), grid)
    with pytest.raises(lapgrad.ShapeError, match="square"):
        potrf(BlockCyclicMatrix.from_dense(torch.ones(5, 4), grid))
    with pytest.raises(lapgrad.ShapeError, match="square blocks"):
        potri(BlockCyclicMatrix.from_dense(torch.eye(5), grid, column_block=2))
    with pytest.raises(lapgrad.ShapeError, match="must have 5 rows"):
        trsm(square, BlockCyclicMatrix.from_dense(torch.ones(4, 2), grid))
    with pytest.raises(lapgrad.DTypeError, match="same dtype"):
        trsm(square, BlockCyclicMatrix.from_dense(torch.ones(5, 2).double(), grid))
    with pytest.raises(lapgrad.DTypeError, match="BlockCyclicMatrix"):
        potrf(torch.eye(3))  # type: ignore[arg-type]
    with pytest.raises(lapgrad.ShapeError, match="holds"):
        BlockCyclicMatrix(grid, grid.make_layout(5, 5), torch.eye(4))
    with pytest.raises(lapgrad.OptionError, match="block"):
        make_grid(block=0)
    with pytest.raises(lapgrad.OptionError, match="started as one"):
        make_grid((2, 2))
    for shape in ((-1, -1), (1,), "1x1"):
        with pytest.raises(lapgrad.OptionError, match="rows and columns"):
            make_grid(shape)  # type: ignore[arg-type]
    with pytest.raises(lapgrad.OptionError, match="engine"):
        make_grid(engine="elpa")
    with pytest.raises(lapgrad.OptionError, match="device"):
        make_grid(device="meta")
    with pytest.raises(lapgrad.ShapeError, match="noise_var"):
        mvn_nll(RBF(), torch.ones(3, 1), torch.ones(3, 1), torch.ones(2), grid=grid)
