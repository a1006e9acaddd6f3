"""linalg.eigh_fn and linalg.pca: where eigenvalues meet, at the edge of domains, against definitions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import scipy.linalg
import torch
from device import DEVICE
from samples import MAKERS, OPERATORS
from tolerances import assert_all_close, of_order
from torch import Tensor
from torch._dynamo import compiled_autograd
from torch.autograd import gradcheck

import lapgrad
from lapgrad.linalg import _divided_differences

eigh_fn, pca = lapgrad.linalg.eigh_fn, lapgrad.linalg.pca

FUNCTIONS: tuple[dict[str, Any], ...] = (
    {"f": "exp"},
    {"f": "log"},
    {"f": "sqrt"},
    {"f": "rsqrt"},
    {"f": "inv"},
    {"f": "power", "exponent": 0.3},
    {"f": "power", "exponent": -1.7},
    {"f": "power", "exponent": 3},
    {"f": "power", "exponent": -2},
    {"f": torch.sigmoid},
)


def name(flags: dict[str, Any]) -> str:
    f = flags["f"]
    return f"{f if isinstance(f, str) else f.__name__} {flags.get('exponent', '')}"


def make_with_spectrum(values: list[float]) -> Tensor:
    generator = torch.Generator().manual_seed(len(values))
    Q = torch.linalg.qr(
        torch.randn(len(values), len(values), generator=generator, dtype=torch.float64).to(DEVICE)
    ).Q
    A = Q @ (torch.tensor(values, dtype=torch.float64, device=DEVICE).unsqueeze(-1) * Q.mT)
    return 0.5 * (A + A.mT)


@pytest.mark.parametrize("flags", FUNCTIONS, ids=name)
@pytest.mark.parametrize(
    "spectrum",
    [
        [0.7, 0.7, 0.7, 0.7],
        [0.5, 1.5, 1.5, 3.0],
        [1.0, 1.0 + 1e-9, 1.0 + 1e-4, 2.0],
        [1e-3, 1e-3, 10.0, 10.0],
    ],
    ids=str,
)
def test_exact_at_repeated_and_close_eigenvalues(flags: dict[str, Any], spectrum: list[float]) -> None:
    A = make_with_spectrum(spectrum).requires_grad_()

    scale = float(eigh_fn(A.detach(), **flags).abs().max())

    def f(A: Tensor) -> Tensor:
        return eigh_fn(0.5 * (A + A.mT), **flags) / scale

    step = 1e-6 * min(spectrum)
    assert gradcheck(f, A, eps=step, atol=1e-5 / min(spectrum), rtol=1e-4, check_forward_ad=True)


@pytest.mark.parametrize("flags", [*FUNCTIONS, {"f": torch.sin}], ids=name)
def test_second_derivatives_are_finite_at_repeated_eigenvalues(flags: dict[str, Any]) -> None:
    A = make_with_spectrum([1.0, 1.0, 2.0, 2.0, 2.0]).requires_grad_()
    (gradient,) = torch.autograd.grad(eigh_fn(A, **flags).sin().sum(), A, create_graph=True)
    (second,) = torch.autograd.grad(gradient.sin().sum(), A)
    assert second.isfinite().all()


def test_agrees_with_scipy() -> None:
    A = MAKERS["spaced"]((6, 6), torch.Generator().manual_seed(0))
    pairs: tuple[tuple[dict[str, Any], Callable[..., Any]], ...] = (
        ({"f": "log"}, scipy.linalg.logm),
        ({"f": "sqrt"}, scipy.linalg.sqrtm),
        ({"f": "inv"}, scipy.linalg.inv),
        ({"f": "power", "exponent": 0.3}, lambda A: scipy.linalg.fractional_matrix_power(A, 0.3)),
    )
    for flags, reference in pairs:
        expected = torch.from_numpy(reference(A.cpu().numpy())).to(DEVICE)
        result = eigh_fn(A, **flags)
        assert torch.equal(result, result.mT)
        assert_all_close(result, expected, of_order(6) * OPERATORS["linalg.eigh_fn"].condition(6))


def test_exponential_agrees_with_its_series() -> None:
    """The series has 30 digits. (scipy's exponential errs by 200 units here.)"""
    mpmath = pytest.importorskip("mpmath")
    A = MAKERS["spaced"]((6, 6), torch.Generator().manual_seed(0))
    with mpmath.workdps(30):
        series = mpmath.expm(mpmath.matrix(A.tolist()), method="taylor").tolist()
    expected = torch.tensor([[float(x) for x in row] for row in series], dtype=A.dtype, device=DEVICE)
    assert_all_close(eigh_fn(A, "exp"), expected, of_order(6) * OPERATORS["linalg.eigh_fn"].condition(6))


def test_gradient_of_the_exponential_agrees_with_torch() -> None:
    A = make_with_spectrum([-1.0, -1.0, 0.5, 2.0, 2.0]).requires_grad_()
    W = torch.randn(5, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(DEVICE)
    (ours,) = torch.autograd.grad((eigh_fn(A, "exp") * W).sum(), A)
    (theirs,) = torch.autograd.grad((torch.matrix_exp(A) * W).sum(), A)
    assert_all_close(ours, 0.5 * (theirs + theirs.mT))


@pytest.mark.parametrize("flags", FUNCTIONS, ids=name)
def test_divided_differences_have_all_digits(flags: dict[str, Any]) -> None:
    """They agree with 60-digit arithmetic for all pairs, from distant numbers to neighbouring ones."""
    mpmath = pytest.importorskip("mpmath")
    f, exponent = flags["f"], flags.get("exponent")
    rule = (
        _divided_differences.find_rule(f, exponent, 0.0)
        if isinstance(f, str)
        else _divided_differences.make_rule(f)
    )
    exact = {
        "exp": mpmath.exp,
        "log": mpmath.log,
        "sqrt": mpmath.sqrt,
        "rsqrt": lambda x: 1 / mpmath.sqrt(x),
        "inv": lambda x: 1 / x,
        "power": lambda x: x ** mpmath.mpf(exponent),
        "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)),
    }[f if isinstance(f, str) else f.__name__]
    a = 1.3
    with mpmath.workdps(60):
        for gap in (10.0, 1.0, 0.3, 2e-2, 5e-3, 1e-4, 1e-7, 1e-10, 1e-15):
            b = a + gap
            found = float(rule.differences(torch.tensor([a, b], dtype=torch.float64, device=DEVICE))[0, 1])
            wanted = (exact(mpmath.mpf(b)) - exact(mpmath.mpf(a))) / (mpmath.mpf(b) - mpmath.mpf(a))
            # For a callable this is the quotient (f(b) - f(a)) / (b - a), whose error is eps / gap. It is
            # used for gaps above eps^(1/4): the error is at most eps^(3/4).
            allowed = 1e-14 if isinstance(f, str) else 1e-10
            assert abs(found / float(wanted) - 1) <= allowed, gap


@pytest.mark.parametrize(
    ("flags", "spectrum"),
    [
        ({"f": "log"}, [-0.5, 1.0, 2.0]),
        ({"f": "log"}, [0.0, 0.0, 0.0]),
        ({"f": "sqrt"}, [-0.5, 1.0, 2.0]),
        ({"f": "rsqrt"}, [-0.5, 1.0, 2.0]),
        ({"f": "inv"}, [0.0, 0.0, 0.0]),
        ({"f": "power", "exponent": 0.5}, [-0.5, 1.0, 2.0]),
        ({"f": "exp"}, [1.0, 2.0, 1000.0]),
        ({"f": torch.log}, [-0.5, 1.0, 2.0]),
    ],
    ids=lambda value: name(value) if isinstance(value, dict) else str(value),
)
def test_outside_of_the_domain(flags: dict[str, Any], spectrum: list[float]) -> None:
    A = torch.stack(
        [
            make_with_spectrum([1.0, 2.0, 3.0]),
            torch.diag(torch.tensor(spectrum, dtype=torch.float64, device=DEVICE)),
        ]
    )
    for operand in (A, A.clone().requires_grad_()):
        with pytest.raises(
            lapgrad.DomainError, match=r"^linalg.eigh_fn: A\[1\] has the eigenvalue"
        ) as caught:
            eigh_fn(operand, **flags)
        assert caught.value.item == (1,)


@pytest.mark.parametrize(
    "flags", [{"f": "sqrt"}, {"f": "power", "exponent": 0.5}, {"f": "power", "exponent": 1.5}]
)
def test_roots_of_a_singular_matrix(flags: dict[str, Any]) -> None:
    """Zeros that rounding made negative are zeros; the gradient is finite."""
    X = torch.randn(8, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(DEVICE)
    A = (X @ X.mT).requires_grad_()
    assert lapgrad.syevd(A.detach(), vectors=False)[0] < 0
    B = eigh_fn(A, **flags)
    assert B.isfinite().all()
    (gradient,) = torch.autograd.grad(B.sin().sum(), A)
    assert gradient.isfinite().all()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"f": "cos"}, "f must be one of 'exp'"),
        ({"f": "power"}, 'f="power", and no other, takes an exponent'),
        ({"f": "exp", "exponent": 2.0}, 'f="power", and no other, takes an exponent'),
        ({"f": "sqrt", "tol": -1.0}, "tol must be"),
    ],
    ids=str,
)
def test_unknown_options(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(lapgrad.OptionError, match=f"^linalg.eigh_fn: {message}"):
        eigh_fn(torch.eye(3, device=DEVICE), **flags)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # compiled autograd
@pytest.mark.parametrize("backward", ["as compiled", "compiled autograd"])
def test_compiled_functions_of_ones_own(backward: str) -> None:
    """Traced with the call, values it closes over included; derivatives as without the compiler."""
    rate = torch.tensor(0.5, dtype=torch.float64, device=DEVICE)

    def loss(A: Tensor) -> Tensor:
        return eigh_fn(A, lambda x: torch.tanh(rate * x)).sin().sum()

    A = make_with_spectrum([1.0, 1.0, 2.0, 4.0])
    eager, leaf = A.clone().requires_grad_(), A.clone().requires_grad_()
    expected = loss(eager)
    expected.backward()
    value = torch.compile(loss, backend="aot_eager", fullgraph=True)(leaf)
    assert_all_close(value, expected)
    compiler = torch.compile(backend="aot_eager", fullgraph=True)
    again = contextlib.nullcontext() if backward == "as compiled" else compiled_autograd._enable(compiler)
    with again:
        value.backward()
    assert_all_close(leaf.grad, eager.grad)


@pytest.mark.parametrize("shape", [(9, 4), (4, 9), (5, 5), (3, 6, 4), (2, 4, 6), (1, 3)], ids=str)
def test_components_explain_the_data(shape: tuple[int, ...]) -> None:
    X = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(DEVICE)
    n, d = shape[-2:]
    k = min(n, d)
    components, variance, mean, scores = pca(X, k=k)
    assert_all_close(mean, X.mean(-2))
    assert_all_close(scores @ components + mean.unsqueeze(-2), X, 2000)
    assert (variance.diff(dim=-1) <= 0).all()
    assert_all_close(variance, scores.square().sum(-2) / max(n - 1, 1), 2000)
    gram = components @ components.mT
    there = variance > 1e-12
    identity = torch.eye(k, dtype=torch.float64, device=DEVICE) * there.unsqueeze(-1)
    if d > n:
        assert_all_close(gram, identity.expand_as(gram), 2000)
    size = components.abs()
    leads = size >= (1 - 1e-6) * size.amax(-1, keepdim=True)
    first = components.gather(-1, leads.int().argmax(-1, keepdim=True)).squeeze(-1)
    assert (first[there] > 0).all()


def test_components_of_both_sides_agree() -> None:
    """The covariance of wide data is the larger side; its leading eigenvectors are the components."""
    X = MAKERS["spaced_rows"]((4, 7), torch.Generator().manual_seed(0))
    components, variance, _, _ = pca(X, k=3)
    covariance = torch.cov(X.mT)
    U, eigenvalues = lapgrad.syevd(covariance, k=3)
    assert_all_close(components, U.flip(0), 1000)
    assert_all_close(variance, eigenvalues.flip(0), 1000)


#: Powers of two, for which results scale exactly: around the roots of the smallest and the largest number,
#: and far below.
SCALES = {torch.float64: (-1000, -600, -508, 500, 508), torch.float32: (-100, -70, -60, 55, 60)}


@pytest.mark.parametrize("shape", [(12, 5), (4, 9), (2, 6, 6)], ids=str)
@pytest.mark.parametrize("dtype", SCALES, ids=str)
def test_components_of_small_and_large_data(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """Components do not depend on the unit of the data, their gradient is in its reciprocal."""
    X = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(DEVICE, dtype)
    W = torch.randn(12, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(DEVICE, dtype)

    def results(exponent: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        unit = torch.tensor(2.0, dtype=dtype, device=DEVICE) ** exponent
        leaf = (X * unit).requires_grad_()
        components, _, _, scores = pca(leaf, k=2)
        turned = (components * W[:2, : shape[-1]]).sum()
        (of_components,) = torch.autograd.grad(turned, leaf, retain_graph=True)
        (of_scores,) = torch.autograd.grad((scores * W[: shape[-2], :2]).sum(), leaf)
        return components.detach(), scores.detach() / unit, of_components * unit, of_scores

    for exponent in SCALES[dtype]:
        for actual, expected in zip(results(exponent), results(0), strict=True):
            assert torch.equal(actual, expected), exponent


@pytest.mark.parametrize("shape", [(12, 5), (4, 9)], ids=str)
@pytest.mark.parametrize(
    ("dtype", "exponent"), [(torch.float64, -508), (torch.float64, 508), (torch.float32, -60)]
)
def test_variances_of_small_and_large_data(dtype: torch.dtype, exponent: int, shape: tuple[int, ...]) -> None:
    X = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(DEVICE, dtype)
    unit = torch.tensor(2.0, dtype=dtype, device=DEVICE) ** exponent
    leaf, scaled = X.clone().requires_grad_(), (X * unit).requires_grad_()
    expected, actual = pca(leaf, k=2).variance, pca(scaled, k=2).variance
    assert_all_close(actual / unit / unit, expected)
    (expected,) = torch.autograd.grad(expected[0], leaf)
    (actual,) = torch.autograd.grad(actual[0], scaled)
    assert_all_close(actual / unit, expected)


def test_variances_that_overflow() -> None:
    X = torch.tensor([[1e200, 0.0], [0.0, 1.0], [0.0, 0.0]], dtype=torch.float64, device=DEVICE)
    with pytest.raises(lapgrad.NonFiniteError, match=r"^linalg\.pca: the covariance of X contains NaN"):
        pca(X)


@pytest.mark.parametrize(("f", "seen"), [(torch.sum, r"shape \(\)"), (lambda values: 1.0, "float")])
def test_results_of_functions_of_another_shape(f: Callable[[Tensor], Any], seen: str) -> None:
    message = rf"^linalg.eigh_fn: f must return a tensor of the shape of its argument, \(3,\), got {seen}\.$"
    with pytest.raises(lapgrad.ShapeError, match=message):
        eigh_fn(torch.eye(3, device=DEVICE), f)


@pytest.mark.parametrize("k", [-1, 4])
def test_number_of_components(k: int) -> None:
    with pytest.raises(lapgrad.OptionError, match=r"^linalg.pca: k must be between 0 and the smaller side"):
        pca(torch.ones(5, 3, device=DEVICE), k=k)


def test_all_components_by_default() -> None:
    X = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(DEVICE)
    for default, asked in zip(pca(X), pca(X, k=3), strict=True):
        assert torch.equal(default, asked)


def test_data_without_rows() -> None:
    with pytest.raises(lapgrad.ShapeError, match=r"^linalg.pca: X must have at least one row"):
        pca(torch.ones(0, 3, device=DEVICE), k=0)
