"""The benchmark of the sparse Gaussian process: all libraries compute the same."""

from __future__ import annotations

import pytest
import torch
from tolerances import HIGHER_ORDER, assert_all_close

from lapgrad_bench import datasets
from lapgrad_bench.bench.models import sparse_gp
from lapgrad_bench.bench.peers.worker import in_gpy, in_gpytorch


def test_peers_compute_the_same() -> None:
    problem = sparse_gp.Problem.select(datasets.make_stand_in(60), 7)
    ours, theirs = sparse_gp.make_lapgrad_evaluation(problem)(), sparse_gp.make_torch_evaluation(problem)()
    assert_all_close(ours, theirs, HIGHER_ORDER)


@pytest.mark.parametrize("name", ["gpytorch", "GPy"])
def test_other_libraries_compute_the_same(name: str) -> None:
    pytest.importorskip(name)
    problem = sparse_gp.Problem.select(datasets.make_stand_in(60), 7)
    worker = {"gpytorch": in_gpytorch, "GPy": in_gpy}[name]
    peer = worker.Library("cpu", torch.get_num_threads()).sparse_gp(**problem.arguments())
    assert float(peer()[0]) == pytest.approx(float(sparse_gp.make_lapgrad_evaluation(problem)()[0]), rel=1e-3)


def test_inducing_inputs_are_the_same_every_time() -> None:
    data = datasets.make_stand_in(100)
    one, other = (sparse_gp.Problem.select(data, 50) for _ in range(2))
    assert torch.equal(one.Z, other.Z)
    assert not torch.equal(one.Z, sparse_gp.Problem.select(data, 51).Z[:50])


def test_float32_error_is_in_units_of_eps() -> None:
    error = sparse_gp.measure_float32_error(sparse_gp.Problem.select(datasets.make_stand_in(60), 7))
    assert 0.0 < error < sparse_gp.MOST_EPS
