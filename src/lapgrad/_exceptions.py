"""Exceptions and warnings: one class per kind of mistake.

Every class is also the built-in (or torch) class a caller would catch anyway, so ``except ValueError`` around
a shape mistake and ``except torch.linalg.LinAlgError`` around a failed factorisation keep working.
"""

from __future__ import annotations

import torch

# Here, because all other modules import this one before anything that an older torch does not have.
if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 11):
    raise ImportError(
        f"lapgrad needs torch 2.11 or newer, found {torch.__version__}: pip install 'torch>=2.11'"
    )

#: Raised by torch when LAPACK fails. torch has the class, but no annotation of it.
TORCH_LINALG_ERROR: type[Exception] = torch.linalg.LinAlgError  # type: ignore[attr-defined]


class LapgradError(Exception):
    """Base of every exception that lapgrad raises on purpose.

    Each is also the built-in or torch exception that one would expect: ``except ValueError`` around a
    mistake in a shape, or ``except torch.linalg.LinAlgError`` around a factorisation that fails, keep
    working.
    """


class DTypeError(LapgradError, TypeError):
    """An argument is not a float32 or float64 tensor, or the arguments differ in dtype.

    Nothing is converted silently: ``x.double()`` or ``x.to(other.dtype)`` says what is meant.
    """


class ShapeError(LapgradError, ValueError):
    """The shape of an argument does not fit the operator, or the shapes do not fit each other.

    The message names the argument, its shape, and the shape that is wanted.
    """


class DeviceError(LapgradError, ValueError):
    """The arguments live on different devices.

    The message names each argument with its device; ``x.to(other.device)`` moves one.
    """


class SizeError(LapgradError, OverflowError):
    """A dimension is larger than the 32-bit integers of BLAS can count.

    The limit is on rows and columns of one matrix; batches have none.
    """


class OptionError(LapgradError, ValueError):
    """A keyword argument has a value that the operator does not know.

    The message lists the values that it knows.
    """


class _FailedItemError(LapgradError, torch.linalg.LinAlgError):  # type: ignore[name-defined]
    """A numerical failure, with the batch index of the first matrix that failed."""

    def __init__(self, message: str, item: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.item = item

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (*self.args, self.item)


class _FailedIndexError(_FailedItemError):
    """A numerical failure with the batch index, and the row or column at which it failed."""

    def __init__(self, message: str, item: tuple[int, ...] = (), index: int = 0) -> None:
        super().__init__(message, item)
        self.index = index

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (*self.args, self.item, self.index)


class NotPositiveDefiniteError(_FailedItemError):
    """A matrix handed to a Cholesky factorisation is not positive definite.

    Attributes:
        item: Batch index of the first matrix that failed; ``()`` when there is no batch.
        minor: Order of its first leading minor that is not positive (counted from 1).
    """

    def __init__(self, message: str, item: tuple[int, ...] = (), minor: int = 0) -> None:
        super().__init__(message, item)
        self.minor = minor

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (*self.args, self.item, self.minor)


class NonFiniteError(LapgradError, ValueError):
    """A NaN or an infinity was met in a matrix to be factorised.

    Attributes:
        item: Batch index of the first matrix that failed; ``()`` when there is no batch.
        pivot: The column whose pivot came out as NaN or infinite (counted from 1).
    """

    def __init__(self, message: str, item: tuple[int, ...] = (), pivot: int = 0) -> None:
        super().__init__(message)
        self.item = item
        self.pivot = pivot

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (*self.args, self.item, self.pivot)


class SingularMatrixError(_FailedIndexError):
    """A triangular matrix to be solved with, or the factor of a matrix, has an exact zero on its diagonal.

    Attributes:
        item: Batch index of the first matrix that failed; ``()`` when there is no batch.
        index: Position of the first zero on that diagonal (counted from 0).
    """


class ConvergenceError(_FailedItemError):
    """The iteration for eigenvalues or singular values did not converge.

    Attributes:
        item: Batch index of the first matrix that failed; ``()`` when there is no batch.
    """


class DegenerateSpectrumError(_FailedItemError):
    """A gradient does not exist, because the loss treats equal eigenvalues or singular values differently.

    Attributes:
        item: Batch index of the first matrix with such values; ``()`` when there is no batch.
    """


class RankDeficientError(_FailedIndexError):
    """A derivative or a solution does not exist, because a matrix does not have full rank.

    Attributes:
        item: Batch index of the first matrix that failed; ``()`` when there is no batch.
        index: The first row (or column) that depends on those before it (counted from 0).
    """


class DomainError(LapgradError, ValueError):
    """A function of a matrix is not defined, or not finite, at one of its eigenvalues.

    Attributes:
        item: Batch index of the first matrix concerned; ``()`` when there is no batch.
        eigenvalue: The eigenvalue.
    """

    def __init__(self, message: str, item: tuple[int, ...] = (), eigenvalue: float = 0.0) -> None:
        super().__init__(message)
        self.item = item
        self.eigenvalue = eigenvalue

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (*self.args, self.item, self.eigenvalue)


class FitError(LapgradError, RuntimeError):
    """A model could not be fitted: its loss cannot be evaluated, or is not finite.

    Attributes:
        step: The evaluation of the loss that failed, counted from 1.
    """

    def __init__(self, message: str, step: int = 0) -> None:
        super().__init__(message)
        self.step = step

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (*self.args, self.step)


class FileFormatError(LapgradError, ValueError):
    """A file does not hold what it should: a model, or results of a benchmark.

    The message says what is wrong with it: truncated, damaged, or written by a later version.
    """


class MissingDependencyError(LapgradError, ImportError):
    """A package that only this function needs is not installed.

    The message has the command that installs it.
    """


class ProcessGroupError(LapgradError, RuntimeError):
    """Another process of a group has failed, has ended, or cannot be reached.

    Attributes:
        ranks: The ranks that failed; empty if they are not known.
    """

    def __init__(self, message: str, ranks: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.ranks = ranks

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (*self.args, self.ranks)


class JitterWarning(RuntimeWarning):
    """Something was added to the diagonal of a covariance matrix, which rounding had made indefinite.

    The message says how much, relative to the mean of the diagonal. More noise, or float64, avoids it.
    """


class FitWarning(RuntimeWarning):
    """A fit has ended at useless parameters.

    The Gaussian process explains nothing: noise around the mean would be as likely. Start from other
    hyper-parameters (those that are not given start from the data), or choose another kernel.
    """


class DegenerateSpectrumWarning(RuntimeWarning):
    """A gradient does not exist, because the loss treats equal eigen- or singular values differently.

    The gradient that is returned is finite: it leaves out the terms that do not exist. ``degeneracy="raise"``
    of ``syevd`` and ``gesvd`` makes this an error.
    """
