"""Gaussian processes give the same figures if a GPU computes their kernels by formulas."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import emulated
import pytest
import stand_ins
import tolerances
import torch
from kernel_packages import CUDA_KERNELS
from torch import Tensor

import lapgrad
from lapgrad._kernels import table as _kernels
from lapgrad._kernels.cpu import is_available
from lapgrad._kernels.cuda import thresholds as _thresholds
from lapgrad._kernels.cuda.runtime import stream as _stream
from lapgrad.fused import _kernel_matrix
from lapgrad.fused._sgp import gradient as _gradient
from lapgrad.fused._sgp import kernel_function as _kernel_function
from lapgrad.fused._sgp import statistics as _statistics
from lapgrad.models import GPRegression
from lapgrad.models._training import evaluation as _evaluation
from lapgrad.models._training import fitting as _fitting
from lapgrad.models.kernels import RBF, Deep, Kernel, Periodic, Polynomial, White

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(emulated.COMPILER is None, reason="needs g++ to emulate kernels"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="the stand-ins take the place of real libraries"),
    pytest.mark.skipif(not is_available(), reason="the algorithms are in the compiled core"),
]

DOUBLE = torch.float64
N, D = 140, 2


@contextlib.contextmanager
def use_gpu_code() -> Iterator[None]:
    """While active, CPU tensors are computed by the code for GPUs, with emulated kernels."""
    with (
        mock.patch.object(_stream, "bind_context", return_value=None),
        mock.patch.object(_stream, "get_block_memory", return_value=227 * 1024),
        stand_ins.replace_gpu(),
        mock.patch.dict(_kernels._CPU.fill(), CUDA_KERNELS, clear=True),
    ):
        yield


@contextlib.contextmanager
def count_formulas() -> Iterator[list[str]]:
    """Yield the formulas of the matrices that are filled while this context is active."""
    found: list[str] = []
    fill = _kernel_matrix.fill_matrix

    def remember(text: str, *arguments: Any, **options: Any) -> Tensor:
        found.append(text)
        return fill(text, *arguments, **options)

    with mock.patch.object(_kernel_matrix, "fill_matrix", remember):
        yield found


def make_rbf() -> Kernel:
    return RBF([0.15, 0.25], variance=1.2)


def make_quasi_periodic() -> Kernel:
    return RBF(0.2, variance=0.8) * Periodic(0.7, 0.9, 1.1, active_dims=[1]) + 0.3 + White(0.1)


KERNELS = [make_rbf, make_quasi_periodic]
kernels = pytest.mark.parametrize("make", KERNELS)


def make_data() -> tuple[Tensor, Tensor]:
    X = torch.rand(N, D, dtype=DOUBLE)
    y = torch.sin(5.0 * X[:, 0]) + 0.1 * torch.randn(N, dtype=DOUBLE)
    return X, torch.stack([y, X[:, 1].square()], 1)


def differentiate(value: Tensor, leaves: Sequence[Tensor]) -> list[Tensor]:
    return [value.detach(), *torch.autograd.grad(value, leaves)]


@kernels
@pytest.mark.parametrize("noise", ["learned", "known"])
def test_exact_process(make: Callable[[], Kernel], noise: str) -> None:
    X, y = make_data()
    variances = 0.1 if noise == "learned" else 0.05 + 0.1 * torch.rand(N, dtype=DOUBLE)
    models = [GPRegression(X, y, make(), noise_var=variances, mean="linear") for _ in range(2)]
    expected = differentiate(models[0].loss(), tuple(models[0].parameters()))
    with use_gpu_code(), count_formulas() as formulas:
        found = differentiate(models[1].loss(), tuple(models[1].parameters()))
        with torch.no_grad():
            alone = models[1].loss()
    assert len(formulas) == 2  # the matrix is filled once, and is not needed for the gradient
    assert torch.equal(alone, found[0])
    tolerances.assert_all_close(found, expected, tolerances.INVERTED_BLOCKS)


def test_derivatives_of_the_gradient() -> None:
    X, y = make_data()
    models = [GPRegression(X, y, make_rbf(), noise_var=0.1) for _ in range(2)]

    def differentiate_twice(model: GPRegression) -> list[Tensor]:
        parameters = tuple(model.parameters())
        first = torch.autograd.grad(model.loss(), parameters, create_graph=True)
        return [*first, *torch.autograd.grad(sum(g.square().sum() for g in first), parameters)]

    expected = differentiate_twice(models[0])
    with use_gpu_code():
        found = differentiate_twice(models[1])
    tolerances.assert_all_close(found, expected, tolerances.INVERTED_BLOCKS)


def test_failed_factorisation() -> None:
    """The factor of twice the same points takes jitter."""
    X = torch.rand(N, D, dtype=DOUBLE)
    X, y = torch.cat([X, X]), torch.cat([X[:, 0], X[:, 0]])
    model = GPRegression(X, y, RBF(10.0, variance=1.0), noise_var=1e-18, noise_floor=0.0)
    with use_gpu_code(), pytest.warns(lapgrad.JitterWarning):
        model.loss()
    assert model.jitter > 0


@kernels
def test_kernel_matrices(make: Callable[[], Kernel]) -> None:
    """Matrices of two sets of points and of one set, with a cotangent that is not symmetric."""
    X, _ = make_data()
    kernel = make().to(DOUBLE)
    rows, columns = X[:30].clone().requires_grad_(), X[30:].clone().requires_grad_()
    leaves = (rows, *kernel.parameters())

    def evaluate() -> list[Tensor]:
        found = []
        for K, wanted in ((kernel(rows, columns), (columns, *leaves)), (kernel(rows), leaves)):
            weights = torch.cos(torch.arange(K.numel(), dtype=DOUBLE)).view(K.shape)
            gradients = torch.autograd.grad(K, wanted, weights, allow_unused=True)
            found += [K.detach(), *(g for g in gradients if g is not None)]
        return found

    expected = evaluate()
    with use_gpu_code(), count_formulas() as formulas:
        found = evaluate()
    assert len(formulas) == 2
    tolerances.assert_all_close(
        [g for g in found if bool(g.abs().max() > 0)], [g for g in expected if bool(g.abs().max() > 0)]
    )


def test_kernels_without_a_formula() -> None:
    class Own(RBF):
        """A class of a user inherits no formula: its matrix may be another one."""

        def matrix(self, *arguments: Any) -> Tensor:
            return 2.0 * super().matrix(*arguments)

    X, _ = make_data()
    wide = torch.rand(10, _thresholds.FEATURES_IN_REGISTERS + 1, dtype=DOUBLE)
    network = torch.nn.Linear(D, 1, dtype=DOUBLE)
    with use_gpu_code(), count_formulas() as formulas, torch.no_grad():
        assert Own(variance=1.0)(X).diagonal()[0] == 2.0
        (RBF() + Polynomial())(X)
        RBF()(wide)
        assert not formulas
        Deep(RBF(), network)(X)
        assert formulas == ["Rbf<1>"]


@kernels
@pytest.mark.parametrize("noise", [0.1, 1e-8])
@pytest.mark.parametrize("defers", [False, True])
def test_sparse_process(make: Callable[[], Kernel], noise: float, defers: bool) -> None:
    """With little noise, triangular solves replace products with an inverse.

    If checks are deferred, the inverse is tried first.
    """
    X, Y = make_data()
    inducing = 70

    def evaluate() -> list[Tensor]:
        kernel = make().to(DOUBLE)
        operands = [X[:inducing], X, Y, torch.tensor(noise, dtype=DOUBLE)]
        leaves = [operand.clone().requires_grad_() for operand in operands]
        value = lapgrad.fused.sgp_nll(kernel, *leaves, jitter=1e-2, chunk=64)
        return differentiate(value, (*leaves, *kernel.parameters()))

    expected = evaluate()
    inverts = _statistics._ON_CPU._replace(inverse=64)
    with (
        use_gpu_code(),
        count_formulas() as formulas,
        mock.patch.object(_gradient, "_defers_checks", return_value=defers),
        mock.patch.object(_statistics, "_ON_CPU", inverts),
    ):
        found = evaluate()
    # K_uu, three chunks, and two of them once more; again if products turn out to be too imprecise.
    assert len(formulas) in ((6, 12) if defers else (6,))
    tolerances.assert_all_close(
        found, expected, tolerances.INDUCING if noise > 1e-3 else tolerances.LITTLE_NOISE
    )


def test_sparse_process_in_float32() -> None:
    X, Y = make_data()
    kernel = make_rbf()

    def evaluate(dtype: torch.dtype) -> list[Tensor]:
        own = make_rbf().to(dtype)
        operands = [operand.float().to(dtype) for operand in (X[:20], X, Y, torch.tensor(0.1))]
        leaves = [operand.requires_grad_() for operand in operands]
        return differentiate(lapgrad.fused.sgp_nll(own, *leaves), (*leaves, *own.parameters()))

    assert kernel.formula == "Rbf"
    with use_gpu_code():
        found, expected = evaluate(torch.float32), evaluate(DOUBLE)
    assert all(g.dtype is torch.float32 for g in found)
    tolerances.assert_all_close(found, [g.float() for g in expected])


class Repeating:
    """A recorder whose recordings just call the function."""

    recording = False

    def __init__(self) -> None:
        self.recordings = 0

    def enter_side_stream(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def record(self, function: Callable[[], None]) -> Callable[[], None]:
        self.recordings += 1
        return function

    def close(self) -> None:
        pass


@contextlib.contextmanager
def replay_fits() -> Iterator[Repeating]:
    """While active, fits of models that are ``replayable`` replay their loss, as on a GPU."""
    recorder = Repeating()

    def make_evaluation(module: Any, loss: Any, parameters: Any) -> _evaluation.Evaluation:
        assert module.replayable
        return _evaluation.ReplayedEvaluation(module, loss, parameters, recorder)

    with mock.patch.object(_fitting, "_make_evaluation", make_evaluation):
        yield recorder


def make_small_model(noise: float = 0.1, **options: Any) -> GPRegression:
    X, y = make_data()
    return GPRegression(X[:30], y[:30, 0], make_rbf(), noise_var=noise, **options)


def test_replayed_fit() -> None:
    torch.manual_seed(0)
    expected = make_small_model()
    torch.manual_seed(0)
    found = make_small_model()
    losses = expected.fit("adam", steps=6).history
    with use_gpu_code(), replay_fits() as recorder:
        replayed = found.fit("adam", steps=6).history
    assert recorder.recordings == 1
    tolerances.assert_close(torch.tensor(replayed), torch.tensor(losses), tolerances.REPLAYED)
    for one, other in zip(found.parameters(), expected.parameters(), strict=True):
        tolerances.assert_close(one, other, tolerances.REPLAYED)


def test_replayed_fit_of_a_matrix_without_a_factor() -> None:
    """The failure is found after the replay, and the evaluation repeated with jitter."""
    X = torch.rand(20, D, dtype=DOUBLE)
    X, y = torch.cat([X, X]), torch.cat([X[:, 0], X[:, 0]])
    model = GPRegression(X, y, RBF(10.0, variance=1.0), noise_var=1e-18, noise_floor=0.0)
    with use_gpu_code(), replay_fits(), pytest.warns(lapgrad.JitterWarning):
        result = model.fit("adam", steps=2, lr=1e-6)
    assert model.jitter > 0
    assert torch.tensor(result.history).isfinite().all()


def test_which_fits_are_replayed() -> None:
    class Own(RBF):
        """A class of a user."""

    model, (X, y) = make_small_model(), make_data()
    assert not model.replayable  # a CPU has no kernels for formulas
    with use_gpu_code():
        assert model.replayable
        assert not GPRegression(X, y, Own()).replayable
        assert not GPRegression(X, y, Polynomial()).replayable
        model.criterion = "leave-one-out"
        assert not model.replayable


def test_only_what_is_needed_is_differentiated() -> None:
    """A fixed kernel is not differentiated. If X needs a gradient, no formulas are used."""
    X, Y = make_data()
    kernel = make_rbf().to(DOUBLE).requires_grad_(False)
    noise = torch.tensor(0.1, dtype=DOUBLE, requires_grad=True)
    Z = X[:20].clone()
    with (
        use_gpu_code(),
        mock.patch.object(_kernel_matrix, "differentiate_matrix", side_effect=AssertionError),
    ):
        (found,) = torch.autograd.grad(lapgrad.fused.sgp_nll(kernel, Z, X, Y, noise), noise)
    (expected,) = torch.autograd.grad(lapgrad.fused.sgp_nll(kernel, Z, X, Y, noise), noise)
    tolerances.assert_close(found, expected, tolerances.INDUCING)
    assert (
        _kernel_function.find_formulas(_kernel_function.wrap_module(kernel), Z, X, needs_inputs=True) is None
    )
