"""What the first fit of a process imports."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys, torch
from lapgrad.models import BayesianLinearRegression, GPRegression, LinearGaussianSSM
from lapgrad.models.components import LocalLevel

x = torch.linspace(0, 6, 30, dtype=torch.float64)
GPRegression(x, x.sin()).fit(steps=3)
BayesianLinearRegression(x, x.sin()).fit(steps=3)
LinearGaussianSSM(x.sin(), LocalLevel()).fit(steps=3)
print("sympy" in sys.modules)
"""


def test_fits_do_not_import_sympy() -> None:
    """torch.broadcast_shapes imports it, which takes half a second."""
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
