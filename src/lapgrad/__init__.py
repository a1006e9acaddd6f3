"""lapgrad: differentiable BLAS and LAPACK operators for PyTorch, and models on top of them.

- ``lapgrad.accelerate()`` lets programs that call ``torch.linalg`` run on lapgrad, without another change.
- Operators have the names of LAPACK and BLAS: ``potrf`` (Cholesky), ``trsm`` (triangular solve),
  ``gelqf`` (LQ), ``syevd`` (eigenvalues), ``gesvd`` (singular values), ...; for one matrix or any batch,
  in float32 and float64.
- ``lapgrad.linalg`` has functions for common tasks (``solve_psd``, ``logdet_psd``, ``lstsq``,
  ``pca``, ...), and the functions of ``torch.linalg`` under torch's names.
- ``lapgrad.fused`` has whole criteria as one operator: ``mvn_nll``, ``kalman_nll``, ``sgp_nll``.
- ``lapgrad.models`` and ``lapgrad.sklearn`` have Gaussian processes, Bayesian linear regression and state
  space models. They are imported when they are first used.
- ``lapgrad.distributed`` spreads models over several processes.

Example:
    >>> import torch, lapgrad
    >>> A = torch.tensor([[4.0, 2.0], [2.0, 5.0]], requires_grad=True)
    >>> L = lapgrad.potrf(A)
    >>> L
    tensor([[2., 0.],
            [1., 2.]], grad_fn=...)
    >>> torch.autograd.grad(lapgrad.sumlogdiag(L), A)  # half of the inverse
    (tensor([[ 0.1562, -0.0625],
            [-0.0625,  0.1250]]),)
"""

import importlib
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType

from lapgrad import fused, linalg
from lapgrad._exceptions import (
    ConvergenceError,
    DegenerateSpectrumError,
    DegenerateSpectrumWarning,
    DeviceError,
    DomainError,
    DTypeError,
    FileFormatError,
    FitError,
    FitWarning,
    JitterWarning,
    LapgradError,
    MissingDependencyError,
    NonFiniteError,
    NotPositiveDefiniteError,
    OptionError,
    ProcessGroupError,
    RankDeficientError,
    ShapeError,
    SingularMatrixError,
    SizeError,
)
from lapgrad.accelerate.switch import accelerate, start_from_environment
from lapgrad.ops.copyltu import copyltu
from lapgrad.ops.det import det
from lapgrad.ops.extractdiag import extractdiag
from lapgrad.ops.extracttrian import extracttrian
from lapgrad.ops.gelqf import LQ, gelqf
from lapgrad.ops.gemm import gemm
from lapgrad.ops.gemm2 import gemm2
from lapgrad.ops.gemmt import gemmt
from lapgrad.ops.gesv import gesv
from lapgrad.ops.gesvd import SingularValueDecomposition, gesvd
from lapgrad.ops.inverse import inverse
from lapgrad.ops.makediag import makediag
from lapgrad.ops.maketrian import maketrian
from lapgrad.ops.potrf import Factorisation, potrf, potrf_ex
from lapgrad.ops.potri import potri
from lapgrad.ops.pstrf import PivotedFactorisation, pstrf
from lapgrad.ops.slogdet import LogDeterminant, slogdet
from lapgrad.ops.sumlogdiag import sumlogdiag
from lapgrad.ops.syevd import Eigendecomposition, syevd
from lapgrad.ops.syrk import syrk
from lapgrad.ops.trmm import trmm
from lapgrad.ops.trsm import trsm

try:
    __version__ = version("lapgrad")
except PackageNotFoundError:  # run from a source tree that is not installed
    __version__ = "0+unknown"


#: Imported at first use, because these packages import this module.
_LATE = ("distributed", "models", "sklearn")


def __getattr__(name: str) -> ModuleType:
    if name in _LATE:
        return importlib.import_module(f"lapgrad.{name}")
    places = [module.__name__ for module in (linalg, fused) if name in module.__all__]
    advice = f": use {places[0]}.{name}" if places else ""
    raise AttributeError(f"module 'lapgrad' has no attribute {name!r}{advice}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_LATE])


start_from_environment()

__all__ = [
    "LQ",
    "ConvergenceError",
    "DTypeError",
    "DegenerateSpectrumError",
    "DegenerateSpectrumWarning",
    "DeviceError",
    "DomainError",
    "Eigendecomposition",
    "Factorisation",
    "FileFormatError",
    "FitError",
    "FitWarning",
    "JitterWarning",
    "LapgradError",
    "LogDeterminant",
    "MissingDependencyError",
    "NonFiniteError",
    "NotPositiveDefiniteError",
    "OptionError",
    "PivotedFactorisation",
    "ProcessGroupError",
    "RankDeficientError",
    "ShapeError",
    "SingularMatrixError",
    "SingularValueDecomposition",
    "SizeError",
    "__version__",
    "accelerate",
    "copyltu",
    "det",
    "extractdiag",
    "extracttrian",
    "fused",
    "gelqf",
    "gemm",
    "gemm2",
    "gemmt",
    "gesv",
    "gesvd",
    "inverse",
    "linalg",
    "makediag",
    "maketrian",
    "potrf",
    "potrf_ex",
    "potri",
    "pstrf",
    "slogdet",
    "sumlogdiag",
    "syevd",
    "syrk",
    "trmm",
    "trsm",
]
