"""lapgrad.linalg under torch's names returns what torch returns for torch's own samples."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any

import pytest
import torch
from public import IN_TORCH_TERMS
from tolerances import HIGHER_ORDER, assert_all_close, assert_close
from torch import Tensor
from torch.utils._pytree import tree_flatten
from torch_samples import (
    call,
    detach_all,
    draw_samples,
    find_operator,
    select_comparable,
    split_differentiable,
)

import lapgrad
from lapgrad import linalg

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.usefixtures("overrides_removed"),
    pytest.mark.filterwarnings("ignore:.*deprecated.*:UserWarning"),
]

#: torch's samples by the name of the function here.
SAMPLES = {
    name: name if name in ("cholesky_inverse", "cholesky_solve", "logdet") else f"linalg.{name}"
    for name in linalg.IN_TORCH_TERMS
}

#: The gradient is lapgrad's, zero in the triangle that is not read; or symmetric.
OTHER_GRADIENTS = {"cholesky_inverse", "cholesky_solve", "eigh", "eigvalsh"}


def call_here(name: str, sample: Any, **options: Any) -> Any:
    return getattr(linalg, name)(sample.input, *sample.args, **sample.kwargs, **options)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("name", SAMPLES)
def test_values(name: str, dtype: torch.dtype) -> None:
    operator = find_operator(SAMPLES[name])
    for drawn in draw_samples(SAMPLES[name], dtype, most=20):
        for sample in (drawn, drawn.noncontiguous()):
            expected, actual = call(operator, sample), call_here(name, sample)
            assert type(actual) is type(expected)
            assert_all_close(
                select_comparable(sample, actual), select_comparable(sample, expected), HIGHER_ORDER
            )


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("upper", [True, False])
@pytest.mark.parametrize("n", [33, 70])
def test_solves_with_few_columns_are_those_of_torch(n: int, upper: bool, left: bool) -> None:
    """torch's kernel solves few columns. It must not be given some of these views as they are."""
    torch.manual_seed(n)
    A = torch.randn(n, n, dtype=torch.float64) / n**0.5 + 2 * torch.eye(n, dtype=torch.float64)
    B = torch.randn(3, n, 2, dtype=torch.float64) if left else torch.randn(3, 2, n, dtype=torch.float64)
    sides = [
        B[0],
        torch._neg_view(B[0]),
        torch._efficientzerotensor(B.shape, dtype=B.dtype)[1],
        B[1].mT.contiguous().mT,
    ]
    for side in sides:
        for matrix in (A, torch._neg_view(A)):
            expected = torch.linalg.solve_triangular(matrix.clone(), side.clone(), upper=upper, left=left)
            actual = linalg.solve_triangular(matrix, side, upper=upper, left=left)
            assert actual.stride() == expected.stride()
            torch.testing.assert_close(actual, expected)
    leaves = [A.clone().requires_grad_(), B[0].clone().requires_grad_()]
    gradients = [
        torch.autograd.grad(solve(*leaves, upper=upper, left=left).square().sum(), leaves)
        for solve in (linalg.solve_triangular, torch.linalg.solve_triangular)
    ]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("name", SAMPLES)
def test_gradients(name: str) -> None:
    operator = find_operator(SAMPLES[name])
    for sample in draw_samples(SAMPLES[name], requires_grad=True, most=8):
        operands, _ = split_differentiable(sample)
        results = [
            select_comparable(sample, call(operator, sample)),
            select_comparable(sample, call_here(name, sample)),
        ]
        torch.manual_seed(1)
        pairs = [(x, y, torch.randn_like(x)) for x, y in zip(*results, strict=True) if x.requires_grad]
        assert all(y.requires_grad for _, y, _ in pairs)
        gradients = [
            torch.autograd.grad([p[i] for p in pairs], operands, [p[2] for p in pairs]) for i in (0, 1)
        ]
        for of_torch, of_lapgrad in zip(*gradients, strict=True):
            if name in OTHER_GRADIENTS:
                continue
            assert_close(of_lapgrad, of_torch, HIGHER_ORDER)


@pytest.mark.parametrize("name", sorted(OTHER_GRADIENTS))
def test_gradients_that_are_not_those_of_torch(name: str) -> None:
    """They are those of finite differences within the structure of the matrix."""
    for sample in draw_samples(SAMPLES[name], requires_grad=True, most=2):
        operands, rebuild = split_differentiable(sample)
        upper = sample.kwargs.get("upper", False)

        def function(
            *values: Tensor, rebuild: Any = rebuild, upper: bool = upper, sample: Any = sample
        ) -> Any:
            first, further, options = rebuild(*values)
            if name.startswith("eig"):
                first = first + first.mT
            elif name == "cholesky_inverse":
                first = first.triu() if upper else first.tril()
            else:
                further = [further[0].triu() if upper else further[0].tril(), *further[1:]]
            results = getattr(linalg, name)(first, *further, **options)
            return tuple(select_comparable(sample, results))

        assert torch.autograd.gradcheck(function, operands, fast_mode=True, check_undefined_grad=False)


@pytest.mark.parametrize("name", [name for name in SAMPLES if name != "logdet"])
def test_out(name: str) -> None:
    for sample in draw_samples(SAMPLES[name], most=5):
        expected = call_here(name, sample)
        tensors = expected if isinstance(expected, tuple) else (expected,)
        for targets in (
            [torch.empty(0, dtype=x.dtype) for x in tensors],
            [torch.zeros(x.shape, dtype=x.dtype) for x in tensors],
        ):
            out = tuple(targets) if isinstance(expected, tuple) else targets[0]
            by_torch = find_operator(SAMPLES[name]).op(
                sample.input, *sample.args, **sample.kwargs, out=detach_all(out)
            )
            returned = call_here(name, sample, out=out)
            assert type(returned) is type(by_torch)
            for result, target, value in zip(
                returned if isinstance(expected, tuple) else (returned,), targets, tensors, strict=True
            ):
                assert result.data_ptr() == target.data_ptr()
                assert_close(target, detach_all(value))


@pytest.mark.parametrize("name", SAMPLES)
def test_operands_that_lapgrad_does_not_serve_are_those_of_torch(name: str) -> None:
    operator = find_operator(SAMPLES[name])
    for sample in draw_samples(SAMPLES[name], torch.complex128, most=3):
        actual, expected = call_here(name, sample), call(operator, sample)
        for one, other in zip(tree_flatten(actual)[0], tree_flatten(expected)[0], strict=True):
            torch.testing.assert_close(one, other, equal_nan=True)


@pytest.mark.parametrize("name", SAMPLES)
def test_errors_are_those_of_torch(name: str) -> None:
    """A matrix that is not square, a vector, integers."""
    own = getattr(torch.linalg, name, None) or getattr(torch, name)
    further = {"cholesky_solve": 1, "solve": 1, "solve_triangular": 1}.get(name, 0)
    options = {"upper": False} if name == "solve_triangular" else {}
    for A in (torch.zeros(2, 3), torch.zeros(2), torch.ones(2, 2, dtype=torch.int64)):
        outcomes = []
        for function in (own, getattr(linalg, name)):
            try:
                function(A, *[A] * further, **options)
                outcomes.append(None)
            except Exception as error:
                outcomes.append((type(error), str(error)))
        assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("name", ["cholesky", "inv", "solve"])
@pytest.mark.parametrize("batch", [(), (3,)], ids=["matrix", "batch"])
def test_failures_are_those_of_torch(name: str, batch: tuple[int, ...]) -> None:
    A = torch.eye(4, dtype=torch.float64).expand(*batch, 4, 4).clone()
    A[(-1,) * len(batch)] = 0.0
    further = (A,) if name == "solve" else ()
    with pytest.raises(torch.linalg.LinAlgError) as expected:
        getattr(torch.linalg, name)(A, *further)
    with pytest.raises(torch.linalg.LinAlgError) as actual:
        getattr(linalg, name)(A, *further)
    assert str(actual.value) == str(expected.value)


@pytest.mark.parametrize("name", SAMPLES)
def test_signatures_are_those_of_torch(name: str) -> None:
    """torch's functions have no signature that Python can read, so it is read from their docstring."""
    own = getattr(torch.linalg, name, None) or getattr(torch, name)
    head = (own.__doc__ or "").strip().splitlines()[0]
    parameters = inspect.signature(getattr(linalg, name)).parameters
    flags = [p.name for p in parameters.values() if p.default is not p.empty or p.kind is p.KEYWORD_ONLY]
    assert flags == [flag for flag in flags if flag in head]


def test_other_names_are_those_of_torch() -> None:
    assert linalg.norm is torch.linalg.norm
    assert linalg.LinAlgError is torch.linalg.LinAlgError
    with pytest.raises(AttributeError, match="choleski"):
        _ = linalg.choleski


def test_every_function_is_listed() -> None:
    assert {name.removeprefix("linalg.") for name in IN_TORCH_TERMS} == set(linalg.IN_TORCH_TERMS)
    for function in IN_TORCH_TERMS.values():
        for section in ("Args", "Returns", "Raises", "Gradient", "Memory", "Cost", "Example"):
            assert f"\n{section}:\n" in inspect.getdoc(function)


ON_TWO_THREADS = """
import torch
from lapgrad import linalg
torch.set_num_threads(2)
A, I = torch.randn(3, 150, 150, dtype=torch.float64), torch.eye(150, dtype=torch.float64).expand(3, 150, 150)
for X in (linalg.solve(A, I), linalg.inv(A)):
    torch.testing.assert_close(A @ X, I)
sign, logarithm = linalg.slogdet(A / 5)
torch.testing.assert_close(linalg.det(A / 5), sign * logarithm.exp())
print("right")
"""


def test_batches_on_several_threads() -> None:
    """torch's own functions may hang at these sizes, so the calls run in a process with a time limit."""
    done = subprocess.run(
        [sys.executable, "-c", ON_TWO_THREADS], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.strip() == "right"


def test_nothing_is_accelerated_by_import() -> None:
    assert lapgrad.accelerate.stats().taken == 0
