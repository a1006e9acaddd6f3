"""Tests an installed wheel in the environment that runs this file, which needs torch and numpy alone.

    python packaging/test_wheel.py

Nothing of the repository is imported. No compiler can be found: PATH is empty before lapgrad is imported.
Prints how long `import lapgrad` and the first `potrf` take in a new process.
"""

from __future__ import annotations

import subprocess
import sys
import time
from importlib import metadata, resources

LIMIT = 20.0
"""Seconds that the import of torch and lapgrad and the first call may take together."""

FIRST_CALL = """
import os
os.environ["PATH"] = ""
import torch, lapgrad
from lapgrad import _core
A = torch.eye(100, dtype=torch.float64) * 4.0
assert torch.equal(lapgrad.potrf(A), 2.0 * torch.eye(100, dtype=torch.float64))
"""

GRADIENTS = """
import os
os.environ["PATH"] = ""
import torch, lapgrad as lg
torch.manual_seed(0)

def make_positive_definite(*shape):
    A = torch.randn(*shape, dtype=torch.float64)
    return A @ A.mT + shape[-1] * torch.eye(shape[-1], dtype=torch.float64)

def compare(ours, theirs, *operands):
    leaves = [x.clone().requires_grad_() for x in operands]
    values = [f(*leaves) for f in (ours, theirs)]
    torch.testing.assert_close(*values)
    gradients = [torch.autograd.grad(value.square().sum(), leaves) for value in values]
    for own, other in zip(*gradients):
        torch.testing.assert_close(own, other)

def symmetric(f):
    return lambda A, *others: f((A + A.mT) / 2, *others)

for shape in [(5, 5), (70, 70), (300, 300), (20, 8, 8), (3, 40, 40)]:
    A = make_positive_definite(*shape)
    B = torch.randn(*shape, dtype=torch.float64)
    compare(symmetric(lg.potrf), symmetric(torch.linalg.cholesky), A)
    L = torch.linalg.cholesky(A)
    solve = lambda L, B: torch.linalg.solve_triangular(L.tril(), B, upper=False)
    compare(lambda L, B: lg.trsm(L.tril(), B), solve, L, B)
    compare(lg.syrk, lambda A: A @ A.mT, B)
    compare(symmetric(lambda A: lg.syevd(A).eigenvalues), symmetric(torch.linalg.eigvalsh), A)
    compare(lambda B: lg.gesvd(B).S, torch.linalg.svdvals, B)
    logdet = lambda A: 2 * torch.linalg.cholesky(A).diagonal(0, -2, -1).log().sum(-1)
    compare(symmetric(lg.linalg.logdet_psd), symmetric(logdet), A)

from lapgrad.models import GPRegression
from lapgrad.models.kernels import RBF
x = torch.linspace(0, 1, 60, dtype=torch.float64)
model = GPRegression(x, torch.sin(6 * x), RBF())
model.fit(steps=20)
assert (model.predict(x).mean - torch.sin(6 * x)).abs().max() < 0.1
with lg.accelerate(always=True):
    lg.accelerate.stats(reset=True)
    torch.linalg.cholesky(make_positive_definite(4, 64, 64))
    assert lg.accelerate.stats().taken == 1
"""


def main() -> None:
    """Run all tests; the first that fails ends the process."""
    files = {str(file) for file in metadata.files("lapgrad") or ()}
    for name in (
        "lapgrad/py.typed",
        "lapgrad/_core.pyi",
        "lapgrad/data/co2_monthly.csv",
        "lapgrad/examples/gp_regression.py",
    ):
        assert name in files, f"the wheel lacks {name}"
    began = time.perf_counter()
    run(sys.executable, "-c", FIRST_CALL)
    seconds = time.perf_counter() - began
    assert seconds < LIMIT, f"import and first call took {seconds:.1f} s"
    run(sys.executable, "-c", GRADIENTS)
    for arguments in (["info"], ["--help"], ["demo", "list"]):
        run(sys.executable, "-m", "lapgrad", *arguments)
    assert "site-packages" in str(resources.files("lapgrad")), "lapgrad is not imported from the wheel"
    own, other = metadata.version("lapgrad"), metadata.version("torch")
    print(f"Python {sys.version.split()[0]}, torch {other}: lapgrad {own} works.")
    print(f"import and first potrf took {seconds:.1f} s")


def run(*command: str) -> None:
    """Run a command without a compiler in reach; its output is shown if it fails."""
    finished = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if finished.returncode:
        sys.exit(f"{command[1:]} failed:\n{finished.stdout}\n{finished.stderr}")


if __name__ == "__main__":
    main()
