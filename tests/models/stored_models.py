"""One model of every class, and of every kind of part, and files of them made by hand."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lapgrad.models import (
    BatchGPRegression,
    BayesianLinearRegression,
    DeepGP,
    DeepGPRegression,
    GPClassification,
    GPRegression,
    LinearGaussianSSM,
    MultiOutputGPRegression,
    MultiTaskBLR,
    PolynomialFeatures,
    RandomFourierFeatures,
    SparseGPRegression,
    VariationalGP,
    likelihoods,
)
from lapgrad.models._model import StoredModel
from lapgrad.models.components import (
    AR,
    Block,
    Emitted,
    LinearDynamics,
    LocalLevel,
    LocalLinearTrend,
    Regression,
    Seasonal,
)
from lapgrad.models.kernels import RBF, Deep, Linear, Matern52, Periodic, Polynomial

Content = dict[str, Any]
DTYPE = torch.float64


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=DTYPE, generator=torch.Generator().manual_seed(seed))


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)).to(DTYPE).eval()


class Level(nn.Module):
    """A network for ``Emitted``: a level whose noise it learns."""

    def __init__(self) -> None:
        super().__init__()
        self.log_variance = nn.Parameter(torch.zeros((), dtype=DTYPE))

    def forward(self, inputs: Tensor) -> Block:
        one = inputs.new_ones(1, 1, 1)
        return Block(one, one, one * self.log_variance.exp(), inputs.new_zeros(1), inputs.new_ones(1, 1))


def series() -> Tensor:
    y = normal(24).cumsum(0)
    y[5] = torch.nan
    return y


X, Y_ONE, Y_TWO = normal(6, 2), normal(6, seed=1), normal(6, 2, seed=2)

#: Models of every class, with every kind of part that a description can have.
MODELS: Mapping[str, Callable[[], StoredModel]] = {
    "blr": lambda: BayesianLinearRegression(X, Y_TWO, PolynomialFeatures(2), ard=True, normalise=True),
    "blr_fourier": lambda: BayesianLinearRegression(
        X, Y_ONE, RandomFourierFeatures(2, 3, generator=0), normalise=False
    ),
    "blr_network": lambda: BayesianLinearRegression(X, Y_ONE, network(), normalise=False),
    "multi_task": lambda: MultiTaskBLR([(X[:4], Y_ONE[:4]), (X[4:], Y_ONE[4:])]),
    "gp": lambda: GPRegression(X, Y_ONE, normalise=True),
    "gp_parts": lambda: GPRegression(
        X,
        Y_TWO,
        RBF([0.8, 1.2]) * Periodic(2.0) + Polynomial(3, active_dims=[1]),
        mean="zero",
        normalise=False,
    ),
    "gp_deep": lambda: GPRegression(X, Y_ONE, Deep(RBF(), network()), normalise=False),
    "gp_linear": lambda: GPRegression(
        X, Y_ONE, 2.0 * RBF(name="smooth") + Linear() ** 2, noise_var=0.1 + Y_ONE.abs(), mean="linear"
    ),
    "gp_batch": lambda: BatchGPRegression(X, Y_TWO.mT, Matern52(ard=True)),
    "gp_outputs": lambda: MultiOutputGPRegression(X, Y_TWO, rank=2),
    "sparse_gp": lambda: SparseGPRegression(X, Y_ONE, inducing=3, normalise=True, generator=0),
    "deep_gp_regression": lambda: DeepGPRegression(X, Y_ONE, widths=[2], inducing=3, generator=0),
    "variational_gp": lambda: VariationalGP(X, Y_ONE, likelihoods.StudentT(), inducing=3, generator=0),
    "variational_gp_deep": lambda: VariationalGP(
        X, Y_ONE > 0, likelihoods.Bernoulli(), widths=[2], inducing=3, generator=0
    ),
    "gp_classification": lambda: GPClassification(X, list("abcabc"), inducing=3, generator=0),
    "deep_gp": lambda: DeepGP(normal(8, 3), [2], inducing=3, hidden=[4], generator=0),
    "series": lambda: LinearGaussianSSM(
        series(), LocalLinearTrend(damped=True) + Seasonal(4) + AR(2) + Regression(normal(30, 1), 0.1)
    ),
    "series_learned": lambda: LinearGaussianSSM([series(), series()[:9]], LinearDynamics(2, generator=0)),
    "series_emitted": lambda: LinearGaussianSSM(
        series(), Emitted(Level(), normal(30, 1), states=1) + LocalLevel(), diffuse_variance=10.0
    ),
}


def make_networks() -> dict[str, nn.Module]:
    """Return new networks under all names that files ask for."""
    return {"features": network(), "network": network(), "module": Level()}


NETWORKS = make_networks()


def load(path: Path, networks: Mapping[str, nn.Module] = NETWORKS) -> StoredModel:
    return StoredModel.load(path, modules=networks)


def save_all(folder: Path) -> dict[str, bytes]:
    """Return the bytes of a file of each model, by name."""
    files = {}
    for name, build in MODELS.items():
        build().save(folder / name)
        files[name] = (folder / name).read_bytes()
    return files


def read_content(saved: Mapping[str, bytes], name: str) -> Content:
    content: Content = torch.load(io.BytesIO(saved[name]), weights_only=True)
    return content


def save_by_torch(content: object, **options: Any) -> bytes:
    file = io.BytesIO()
    torch.save(content, file, **options)
    return file.getvalue()


def convert_to_format_1(content: Content) -> bytes:
    """Return a file of the first format: the same entries without a checksum."""
    return save_by_torch({**content, "format": 1})


def add_checksum(content: Content) -> bytes:
    """Return a file of the second format, made by hand: a zip file with the checksum in its comment."""
    mark = b"lapgrad sha256 "
    before = save_by_torch(content)[:-2] + (len(mark) + 64).to_bytes(2, "little") + mark
    return before + hashlib.sha256(before).hexdigest().encode()


def assert_same_state(one: StoredModel, other: StoredModel) -> None:
    first, second = one.state_dict(), other.state_dict()
    assert list(first) == list(second)
    for name, value in first.items():
        assert value.dtype == second[name].dtype
        assert torch.equal(torch.nan_to_num(value), torch.nan_to_num(second[name])), name
    assert json.dumps(one.config()) == json.dumps(other.config())


def flip(file: bytes, bit: int) -> bytes:
    changed = bytearray(file)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)
