"""Checks of sparse Gaussian processes on several ranks; run by ``test_on_ranks.py``."""

from __future__ import annotations

import copy
import functools
import runpy
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import matplotlib
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from ranks import catch
from tolerances import OVER_RANKS, assert_close
from torch import Tensor, nn

import lapgrad
from lapgrad.distributed import Group, MappedRows, ParquetRows, RowStream, shard
from lapgrad.models import SparseGPRegression
from lapgrad.models._gp import spread_rows
from lapgrad.models.kernels import RBF, Matern52

DOUBLE = torch.float64


def make_data(n: int = 301, d: int = 2) -> tuple[Tensor, Tensor]:
    X = 3.0 * torch.randn(n, d, dtype=DOUBLE) + 1.0
    return X, 2.0 * torch.sin(X.sum(1)) + 5.0 + 0.1 * torch.randn(n, dtype=DOUBLE)


def evaluate(group: Group | None, X: Tensor, Y: Tensor, Z: Tensor, jitter: float = 1e-6) -> list[Tensor]:
    """Return the value, and gradients of X, Y, Z, noise and kernel."""
    kernel = Matern52(lengthscale=[2.0, 3.0], variance=1.5).double()
    noise = torch.tensor(0.1, dtype=DOUBLE)
    leaves = [tensor.clone().requires_grad_() for tensor in (X, Y, Z, noise)]
    X, Y, Z, noise = leaves
    value = lapgrad.fused.sgp_nll(kernel, Z, X, Y, noise, jitter=jitter, chunk=50, group=group)
    return [value.detach(), *torch.autograd.grad(value, [*leaves, *kernel.parameters()])]


def check_value_and_gradients(group: Group) -> None:
    X, y = make_data()
    Y = torch.stack([y, y.square()], 1)
    # Ranks have different numbers of rows, and in the second case the last one has none.
    for bounds in ([0, 100, 301], [0, 301, 301]):
        own = slice(bounds[group.rank], bounds[group.rank + 1])
        expected = evaluate(None, X, Y, X[:20])
        found = evaluate(group, X[own], Y[own], X[:20])
        expected[1], expected[2] = expected[1][own], expected[2][own]
        for one, other in zip(found, expected, strict=True):
            assert_close(one, other, OVER_RANKS)
    with torch.no_grad():
        value = lapgrad.fused.sgp_nll(RBF().double(), X[:9], X[own], Y[own], 0.1, group=group)
        assert_close(value, lapgrad.fused.sgp_nll(RBF().double(), X[:9], X, Y, 0.1), OVER_RANKS)


def check_chunks_that_are_solved_for(group: Group) -> None:
    """All ranks decide alike that products are too imprecise, though only one has points close together."""
    X, y = make_data()
    X[:150] = 1e-3 * X[:150]
    own = slice(0, 150) if group.is_first else slice(150, 301)
    expected = evaluate(None, X, y[:, None], X[::8], 1e-12)
    found = evaluate(group, X[own], y[own, None], X[::8], 1e-12)
    assert_close(found[0], expected[0], OVER_RANKS)
    assert_close(found[3], expected[3], 1e10)


def check_errors_name_the_rank(group: Group) -> None:
    X, y = (part.clone() for part in shard(*make_data(), group=group))
    Z = X[:5].clone()
    if group.rank == 1:
        X[3] = torch.nan
    error = catch(lambda: evaluate(group, X, y[:, None], Z))
    assert isinstance(error, lapgrad.NonFiniteError)
    assert "rank 1" in str(error)
    rows = y[:, None] if group.is_first else y[:3, None]
    error = catch(lambda: evaluate(group, X, rows, Z))
    assert isinstance(error, lapgrad.ShapeError)
    assert "rank 1" in str(error)


class FailingKernel(nn.Module):
    """Raises what is no error of lapgrad, on one rank."""

    def __init__(self, fails: bool) -> None:
        super().__init__()
        self.fails = fails

    def forward(self, A: Tensor, B: Tensor | None = None) -> Tensor:
        if self.fails:
            raise KeyError("of the user")
        return torch.exp(-torch.cdist(A, A if B is None else B))

    def diag(self, A: Tensor) -> Tensor:
        return A.new_ones(len(A))


def check_any_error_ends_all_ranks(group: Group) -> None:
    X, y = shard(*make_data(), group=group)
    for failing in range(group.size):
        kernel = FailingKernel(group.rank == failing)
        error = catch(
            functools.partial(lapgrad.fused.sgp_nll, kernel, X[:5], X, y[:, None], 0.1, group=group)
        )
        if group.rank == failing:
            assert isinstance(error, KeyError)
        else:
            assert isinstance(error, lapgrad.ProcessGroupError)
            assert error.ranks == (failing,)
            assert "of the user" in str(error)
    # Afterwards the group goes on.
    assert group.sum_numbers([1.0]) == [group.size]


def check_no_second_derivatives(group: Group) -> None:
    X, y = shard(*make_data(), group=group)
    Z = X[:5].clone().requires_grad_()
    value = lapgrad.fused.sgp_nll(RBF().double(), Z, X, y[:, None], 0.1, group=group)
    error = catch(lambda: torch.autograd.grad(value, Z, create_graph=True))
    assert isinstance(error, lapgrad.OptionError)


def fit_both(group: Group, optimizer: str, **options: Any) -> tuple[SparseGPRegression, SparseGPRegression]:
    """Return the same model, learned by this rank alone from all rows and by all ranks from theirs."""
    X, y = make_data()
    one = SparseGPRegression(X, y, inducing=8, generator=0, **copy.deepcopy(options))
    two = SparseGPRegression(*shard(X, y, group=group), inducing=8, generator=0, group=group, **options)
    assert_close(two.inducing.detach(), one.inducing.detach(), OVER_RANKS)
    assert_close(two.loss().detach(), one.loss().detach(), OVER_RANKS)
    results = [model.fit(optimizer, steps=12) for model in (one, two)]
    assert results[0].steps == results[1].steps
    return one, two


def assert_same_model(one: SparseGPRegression, two: SparseGPRegression) -> None:
    for first, second in zip(one.parameters(), two.parameters(), strict=True):
        assert_close(second.detach(), first.detach(), OVER_RANKS)
    points = torch.linspace(-3.0, 3.0, 10, dtype=DOUBLE).reshape(5, 2)
    for found, expected in zip(two.predict(points), one.predict(points), strict=True):
        assert_close(found, expected, OVER_RANKS)


def check_fit(group: Group) -> None:
    for optimizer, mean in (("lbfgs", "constant"), ("adam", "linear"), ("lbfgs", "zero")):
        assert_same_model(*fit_both(group, optimizer, mean=mean, normalise=mean != "zero"))


def check_fit_with_a_network_as_mean(group: Group) -> None:
    network = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)).double()
    assert_same_model(*fit_both(group, "adam", mean=network))


def check_ranks_start_from_the_first_one(group: Group) -> None:
    """All ranks start from the network of rank 0, although their random numbers and networks differ."""
    X, y = shard(*make_data(), group=group)
    torch.default_generator.manual_seed(group.rank)
    mean = nn.Linear(2, 1).double()
    model = SparseGPRegression(X, y, inducing=6, init="random", mean=mean, group=group)
    own = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    first = own.clone()
    group.copy_from_first([first])
    assert torch.equal(own, first)


class CountedRows(RowStream):
    """Rows of a tensor that remember the largest number that was read at once."""

    def __init__(self, tensor: Tensor) -> None:
        super().__init__((tensor.shape[0], tensor.shape[1]), tensor.dtype)
        self.tensor, self.most = tensor, [0]

    def read(self, begin: int, end: int) -> Tensor:
        self.most[0] = max(self.most[0], end - begin)
        return self.tensor[begin:end]


def check_rows_from_files(group: Group) -> None:
    """Memory-mapped, Parquet and other streams give the model of the tensors."""
    X, y = make_data()
    expected = SparseGPRegression(X, y, inducing=8, generator=0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.save(folder / "X.npy", X.numpy())
        np.save(folder / "y.npy", y.numpy())
        table = pyarrow.table({"a": X[:, 0].numpy(), "b": X[:, 1].numpy(), "y": y.numpy()})
        pyarrow.parquet.write_table(table[:120], folder / "1.parquet", row_group_size=50)
        pyarrow.parquet.write_table(table[120:], folder / "2.parquet", row_group_size=70)
        counted = CountedRows(X)
        sources = (
            (folder / "X.npy", folder / "y.npy"),
            (np.load(folder / "X.npy", mmap_mode="r"), MappedRows(folder / "y.npy")),
            (ParquetRows(folder, ["a", "b"]), ParquetRows(folder, ["y"])),
            (counted, y),
        )
        for source in sources:
            rows = shard(*source, group=group)
            model = SparseGPRegression(*rows, inducing=8, generator=0, chunk=40, group=group)
            assert_close(model.loss().detach(), expected.loss().detach(), OVER_RANKS)
            assert model.extra_repr() == expected.extra_repr()
            assert model.state_dict()["X"].shape == (0, 2)
        # One process can read a file in chunks, too.
        alone = SparseGPRegression(folder_rows := MappedRows(folder / "X.npy"), y, inducing=8, generator=0)
        assert len(folder_rows) == 301
        assert_close(alone.loss().detach(), expected.loss().detach(), OVER_RANKS)


def check_sample_of_rows(group: Group) -> None:
    """With more rows than the sample has, all ranks start from the same evenly spaced rows."""
    X, y = make_data()
    before, spread_rows.SAMPLE = spread_rows.SAMPLE, 50
    try:
        rows = spread_rows.SpreadRows("model", *shard(X, y, group=group), group)
        found, targets = rows.read_sample()
    finally:
        spread_rows.SAMPLE = before
    wanted = torch.arange(50) * 301 // 50
    assert torch.equal(found, X[wanted])
    assert torch.equal(targets[:, 0], y[wanted])
    for moments, values in zip(rows.moments, (X, y[:, None]), strict=True):
        assert_close(moments.mean, values.mean(0), OVER_RANKS)
        assert_close(moments.variance, values.var(0, correction=0), OVER_RANKS)


def check_bad_data_on_one_rank(group: Group) -> None:
    X, y = (part.clone() for part in shard(*make_data(), group=group))
    if group.rank == 1:
        y[7] = torch.inf
    error = catch(lambda: SparseGPRegression(X, y, inducing=4, group=group))
    assert isinstance(error, lapgrad.NonFiniteError)
    assert "rank 1" in str(error)
    assert "row 7" in str(error)
    error = catch(
        lambda: SparseGPRegression(X[:, : 1 + group.rank], y.clamp(max=9.0), inducing=4, group=group)
    )
    assert isinstance(error, lapgrad.ShapeError)


def check_callbacks(group: Group) -> None:
    X, y = shard(*make_data(), group=group)
    model = SparseGPRegression(X, y, inducing=4, generator=0, group=group)
    result = model.fit("adam", steps=9, callback=lambda step, loss: group.rank == 1 and step == 3)
    assert result.steps == 3
    assert result.reason == "the callback asked to stop"

    def fail(step: int, loss: float) -> None:
        if group.rank == 1 and step == 2:
            raise KeyError("in a callback")

    error = catch(lambda: model.fit("adam", steps=9, callback=fail))
    assert isinstance(error, KeyError if group.rank == 1 else lapgrad.ProcessGroupError)
    state = model.fit("adam", steps=4).loss
    assert np.isfinite(state)


def check_example(group: Group) -> None:
    """``examples/distributed_sparse_gp.py`` learns the same in one process and in all of them."""
    matplotlib.use("Agg")
    folder = Path(group.share_object(tempfile.mkdtemp() if group.is_first else ""))
    shared = run_example(folder, "--checkpoint", str(folder / "fit.pt"))
    assert shared["group"].size == group.size
    assert len(shared["X"]) == shared["n"] // group.size
    group.wait_for_all()
    # Then each rank runs the example by itself, as a group of one process.
    own = folder / str(group.rank)
    with mock.patch("lapgrad.distributed.init_group", Group):
        alone = run_example(own)
    assert alone["group"].size == 1
    assert alone["result"].loss == pytest.approx(shared["result"].loss, rel=1e-6)
    for path in (own / "distributed_sparse_gp.png", folder / "fit.pt", folder / "distributed_sparse_gp.png"):
        assert path.exists()


def run_example(output: Path, *options: str) -> dict[str, Any]:
    """Run the example in its reduced form, and return its variables."""
    example = Path(__file__).resolve().parents[2] / "examples" / "distributed_sparse_gp.py"
    with mock.patch.object(sys, "argv", [str(example), "--quick", "--output", str(output), *options]):
        return runpy.run_path(str(example), run_name="__main__")


def check_files_and_copies(group: Group) -> None:
    X, y = shard(*make_data(), group=group)
    model = SparseGPRegression(X, y, inducing=4, generator=0, group=group)
    assert isinstance(catch(lambda: model.save("model.lapgrad")), lapgrad.OptionError)
    again = copy.deepcopy(model)
    assert again.group is group
    again.load_state_dict(model.state_dict())
    assert_close(again.loss().detach(), model.loss().detach(), OVER_RANKS)
