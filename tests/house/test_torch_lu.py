"""torch's LU: right on any number of threads, and reached through one module only."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from fresh_process import get_output
from tolerances import assert_all_close, of_order
from torch import Tensor

from lapgrad._torch import lu as torch_lu

ROOT = Path(__file__).resolve().parents[2]

#: Calls that factorise by LU. ``lu_solve`` starts from factors, and is right on any number of threads.
LU_CALLS = re.compile(
    r"(?<![\w.])torch\.linalg\.(inv|inv_ex|solve|solve_ex|det|slogdet|lu|lu_factor|lu_factor_ex|tensorinv|tensorsolve)\b"
    r"|(?<![\w.])torch\.(inverse|det|logdet|slogdet|lu)\b"
    r"|\.(inverse|det|logdet|slogdet)\(\)"
)

#: Where such a name may stand: the module itself, its test, and tests of what replaces these functions,
#: which have small matrices only.
ALLOWED = {
    "src/lapgrad/_torch/lu.py",
    "tests/house/test_torch_lu.py",
    "tests/accelerate/test_recorded_lu.py",
    "tests/accelerate/test_semantics.py",
}


def read_code(file: Path) -> str:
    """Return the file without comments, docstrings and other text: names in prose call nothing."""
    text = re.sub(r'"""(?:.|\n)*?"""|"[^"\n]*"', '""', file.read_text())
    return re.sub(r"#.*", "", text)


def test_nothing_else_calls_the_lu_of_torch() -> None:
    files = [file for folder in ("src", "tests", "examples") for file in (ROOT / folder).rglob("*.py")]
    assert len(files) > 100
    found = {
        str(file.relative_to(ROOT)): match[0] for file in files if (match := LU_CALLS.search(read_code(file)))
    }
    assert set(found) <= ALLOWED, found


@pytest.mark.parametrize("batch", [(3,), (2, 1, 3), (1,), (0,), ()], ids=str)
@pytest.mark.parametrize("n", [5, 33, 70])
def test_functions_are_those_of_torch(n: int, batch: tuple[int, ...]) -> None:
    """Values, shapes and gradients equal torch's, at orders where torch's own functions are right."""
    # A and A Aᵀ have condition numbers of at most 3 and 9: singular values lie between 0.5 and 1.5.
    R = torch.randn(*batch, n, n, dtype=torch.float64)
    A = (torch.eye(n) + 0.5 * R / torch.linalg.matrix_norm(R, 2, keepdim=True)).requires_grad_()
    B = torch.randn(*batch, n, 2, dtype=torch.float64).requires_grad_()
    threads = torch.get_num_threads()
    for ours, theirs, operands in (
        (torch_lu.inv, torch.linalg.inv, (A,)),
        (torch_lu.det, torch.linalg.det, (A,)),
        (torch_lu.logdet, lambda A: torch.linalg.slogdet(A).logabsdet, (A @ A.mT,)),
        (lambda A: torch_lu.slogdet(A).logabsdet, lambda A: torch.linalg.slogdet(A).logabsdet, (A,)),
        (torch_lu.solve, torch.linalg.solve, (A, B)),
        (torch_lu.solve, torch.linalg.solve, (A, B[(0,) * len(batch)] if 0 not in batch else B)),
        (lambda A: torch_lu.lu_factor(A)[0], lambda A: torch.linalg.lu_factor(A)[0], (A,)),
    ):
        results = []
        for function, count in ((ours, 2), (theirs, 1)):
            torch.set_num_threads(count)
            try:
                value = function(*operands)
                weight = torch.cos(torch.arange(value.numel(), dtype=value.dtype)).view(value.shape)
                loss = (value * weight).sum()
                results.append((value, *torch.autograd.grad(loss, operands, materialize_grads=True)))
            finally:
                torch.set_num_threads(threads)
        assert_all_close(results[0], results[1], of_order(n))


def check(batch: int, n: int, threads: int, repeats: int) -> None:
    """Raise if inverse, det or slogdet, run in a process of its own, is wrong."""
    import lapgrad

    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(n + threads)
    A = torch.randn(batch, n, n, dtype=torch.float64, generator=generator) / n**0.5 + 2 * torch.eye(n)

    def evaluate() -> list[Tensor]:
        leaf = A.clone().requires_grad_()
        logarithm = lapgrad.slogdet(leaf)[1]
        values = (lapgrad.inverse(leaf), lapgrad.det(leaf), logarithm)
        return [*values, *(torch.autograd.grad(value.sum(), leaf)[0] for value in values)]

    expected = evaluate()
    torch.set_num_threads(threads)
    for _ in range(repeats):
        assert_all_close(evaluate(), expected, of_order(n))


@pytest.mark.slow
@pytest.mark.cpu
@pytest.mark.parametrize("core", ["off", "on"])
def test_operators_on_every_number_of_threads(core: str) -> None:
    """The shapes at which torch's own functions hang, fail or are wrong with 2 threads and more."""
    code = """
from house.test_torch_lu import check
for threads in range(1, 9):
    check(3, 150, threads, 3)
    check(6, 260, threads, 1)
print("right")
"""
    assert get_output(code, OMP_WAIT_POLICY="passive", LAPGRAD_CORE=core) == "right\n"
