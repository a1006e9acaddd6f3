"""Errors with their messages: functions that build an exception from what was seen.

They are called only once something has already failed: the checks themselves live next to the code they
protect and stay cheap. The classes are in ``lapgrad._exceptions``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy
import torch

from lapgrad._exceptions import (
    ConvergenceError,
    DegenerateSpectrumError,
    DeviceError,
    DomainError,
    DTypeError,
    LapgradError,
    MissingDependencyError,
    NonFiniteError,
    NotPositiveDefiniteError,
    OptionError,
    RankDeficientError,
    ShapeError,
    SingularMatrixError,
    SizeError,
)

#: BLAS and LAPACK count rows and columns in 32-bit integers.
LARGEST_DIMENSION = 2**31 - 1


def missing_dependency(function: str, package: str, extra: str) -> MissingDependencyError:
    """The error for a missing ``package`` that ``function`` needs; ``extra`` of lapgrad installs it."""
    return MissingDependencyError(
        f"{function} needs {package}, which is not installed: pip install {package}, or pip install "
        f"'lapgrad[{extra}]'."
    )


def unknown_option(operator: str, argument: str, value: object, known: Sequence[str]) -> OptionError:
    """Return the error for a ``value`` that is not among the words that ``argument`` may be."""
    return OptionError(f"{operator}: {argument} must be one of {', '.join(map(repr, known))}, got {value!r}.")


def not_a_number(operator: str, argument: str, value: object) -> DTypeError:
    """The error for a ``value`` to scale with that is a tensor, or no real number."""
    if isinstance(value, torch.Tensor):
        hint = "Multiply by a tensor outside of the call: its gradient is then recorded."
        return DTypeError(f"{operator}: {argument} must be a number, got a tensor. {hint}")
    return DTypeError(f"{operator}: {argument} must be a real number, got {value!r}.")


def not_finite(operator: str, argument: str, batch: Sequence[int], flat: int) -> NonFiniteError:
    """Return the error for a NaN or an infinity in item ``flat`` of the batch."""
    item = batch_index(flat, batch)
    return NonFiniteError(f"{operator}: {_item_name(argument, item)} contains NaN or infinity.", item)


def not_converged(operator: str, argument: str, batch: Sequence[int], flat: int) -> ConvergenceError:
    """Return the error for item ``flat`` of the batch, on which LAPACK's iteration did not converge."""
    item = batch_index(flat, batch)
    return ConvergenceError(
        f"{operator}: the iteration for {_item_name(argument, item)} did not converge. Its entries are "
        f"finite; scaling or a small perturbation of the matrix may help.",
        item,
    )


def degenerate(operator: str, batch: Sequence[int], flat: int, values: str) -> DegenerateSpectrumError:
    """Return the error for item ``flat`` of the batch, whose gradient does not exist."""
    item = batch_index(flat, batch)
    return DegenerateSpectrumError(f"{operator}: {explain_degeneracy(_item_name('A', item), values)}", item)


def explain_degeneracy(matrix: str, values: str) -> str:
    """Return in words why a loss of ``values``, such as "equal eigenvalues", has no derivative."""
    return (
        f"{matrix} has {values} (up to rounding), and the loss treats these values differently, or depends "
        f"on which of their vectors were chosen. It has no derivative there. (For a function of a symmetric "
        f"matrix, linalg.eigh_fn gives one.)"
    )


def outside_domain(
    operator: str, f: str, item: tuple[int, ...], eigenvalue: float, value: float
) -> DomainError:
    """Return the error for an eigenvalue at which ``f`` is ``value``, which is not finite."""
    return DomainError(
        f"{operator}: {_item_name('A', item)} has the eigenvalue {eigenvalue:.6g}, where {f} is {value}; "
        f"every eigenvalue must lie in the domain of the function.",
        item,
        eigenvalue,
    )


def wrong_dtype(operator: str, argument: str, value: object) -> DTypeError:
    """Return the error for a ``value`` that is not a tensor of float32 or float64."""
    if isinstance(value, torch.Tensor):
        is_half = value.dtype in (torch.float16, torch.bfloat16)
        advice = "" if value.is_complex() else f": use {argument}.{'float' if is_half else 'double'}()"
        return DTypeError(
            f"{operator}: {argument} has dtype {value.dtype}; supported are float32 and float64{advice}."
        )
    advice = ""
    if isinstance(value, numpy.ndarray):
        advice = f": use torch.from_numpy({argument})"
    elif isinstance(value, list | tuple | float):
        advice = f": use torch.tensor({argument}, dtype=torch.float64)"
    return DTypeError(f"{operator}: {argument} must be a torch.Tensor, got {type(value).__name__}{advice}.")


def sparse_tensor(operator: str, argument: str, layout: torch.layout) -> DTypeError:
    """Return the error for a tensor that is not dense."""
    return DTypeError(
        f"{operator}: {argument} has the layout {layout}; dense tensors are supported: use "
        f"{argument}.to_dense()."
    )


def meta_tensor(operator: str, argument: str) -> DeviceError:
    """Return the error for a tensor without values where values are needed."""
    return DeviceError(f"{operator}: {argument} is on the device meta, and has no values.")


def mixed_dtypes(operator: str, arguments: dict[str, torch.Tensor]) -> DTypeError:
    """Return the error for arguments of different dtypes."""
    seen = _listing({name: value.dtype for name, value in arguments.items()})
    return DTypeError(
        f"{operator}: all arguments must have the same dtype, got {seen}. Use .double() or .float()."
    )


def mixed_devices(operator: str, arguments: dict[str, torch.Tensor]) -> DeviceError:
    """Return the error for arguments on different devices."""
    seen = _listing({name: value.device for name, value in arguments.items()})
    return DeviceError(f"{operator}: all arguments must be on the same device, got {seen}. Use .to(device).")


def not_a_matrix(operator: str, argument: str, shape: Sequence[int]) -> ShapeError:
    """Return the error for an argument with fewer than two dimensions where a matrix is needed."""
    return ShapeError(
        f"{operator}: {argument} must be a matrix or a batch of matrices (at least 2 dimensions), "
        f"got shape {tuple(shape)}."
    )


def not_square(operator: str, argument: str, shape: Sequence[int]) -> ShapeError:
    """Return the error for a matrix that is not square."""
    return ShapeError(
        f"{operator}: {argument} must be square in its last two dimensions, got shape {tuple(shape)}."
    )


def shapes_do_not_fit(operator: str, arguments: dict[str, torch.Tensor], wanted: str) -> ShapeError:
    """Return the error for arguments whose shapes do not fit each other; ``wanted`` says how they should."""
    seen = _listing({name: tuple(value.shape) for name, value in arguments.items()})
    return ShapeError(f"{operator}: {wanted}, got shapes {seen}.")


def too_large(operator: str, argument: str, shape: Sequence[int]) -> SizeError:
    """Return the error for a dimension that does not fit the 32-bit integers of BLAS."""
    return SizeError(
        f"{operator}: {argument} has shape {tuple(shape)}; BLAS counts in 32-bit integers, so no dimension "
        f"of a matrix, here or in the result, may exceed {LARGEST_DIMENSION}."
    )


def factorisation_failed(operator: str, batch: Sequence[int], failure: tuple[int, int]) -> LapgradError:
    """Return the error for ``(flat item, code)`` of a kernel: code > 0 names a minor, code < 0 a pivot."""
    flat, code = failure
    return _explain_factorisation(operator, "A", batch_index(flat, batch), code)


def restate_failure(
    operator: str, argument: str, error: NotPositiveDefiniteError | NonFiniteError
) -> LapgradError:
    """Return the error of ``potrf`` in the words of the caller: about ``argument`` of ``operator``."""
    code = -error.pivot if isinstance(error, NonFiniteError) else error.minor
    return _explain_factorisation(operator, argument, error.item, code)


def _explain_factorisation(operator: str, argument: str, item: tuple[int, ...], code: int) -> LapgradError:
    name = _item_name(argument, item)
    if code < 0:
        return NonFiniteError(
            f"{operator}: {name} contains NaN or infinity: pivot {-code} is not finite. "
            f"Check the input, or use potrf_ex to get a status per item.",
            item,
            -code,
        )
    return NotPositiveDefiniteError(
        f"{operator}: {name} is not positive definite: its leading minor of order {code} is not positive. "
        f"Add jitter to the diagonal, or use potrf_ex to get a status per item.",
        item,
        code,
    )


def innovation_failed(
    operator: str, batch: Sequence[int], observations: int, failure: tuple[int, int, int]
) -> LapgradError:
    """Explain ``(flat series, step, code)``.

    Code k > 0 names a minor, k < 0 a pivot or the innovation; k = observations + 2 says that ``step`` is a
    direction of a flat prior, which the data do not determine.
    """
    flat, step, code = failure
    item = (*batch_index(flat, batch), step)
    series = _item_name("series", item[:-1])
    if code == observations + 2:
        return DomainError(
            f"{operator}: {series} has too few observations: they do not determine the diffuse states "
            f"(direction {step}). Use a model with fewer of them, or a prior that is wide and proper.",
            item[:-1],
        )
    if code < -observations:
        return NonFiniteError(
            f"{operator}: {series}: the observation at step {step} minus its prediction is not finite.",
            item,
            0,
        )
    if code < 0:
        return NonFiniteError(
            f"{operator}: {series}: the covariance of the observation at step {step}, given those before it, "
            f"contains NaN or infinity: pivot {-code} is not finite.",
            item,
            -code,
        )
    return NotPositiveDefiniteError(
        f"{operator}: {series}: the covariance of the observation at step {step}, given those before it, "
        f"is not positive definite: its leading minor of order {code} is not positive. Q, R and P must "
        f"be positive semi-definite, and R or P must leave no observation without variance.",
        item,
        code,
    )


def singular(operator: str, item: tuple[int, ...], index: int) -> SingularMatrixError:
    """The error for a zero at entry ``index`` on the diagonal of the triangular matrix ``item`` of L."""
    return SingularMatrixError(
        f"{operator}: {_item_name('L', item)} is singular: its diagonal entry {index} is exactly zero.",
        item,
        index,
    )


def factors_not_finite(operator: str, batch: Sequence[int], failure: tuple[int, int]) -> NonFiniteError:
    """Return the error for ``(flat item, row)``, the first row of L (from 1) that is not finite."""
    item, row = batch_index(failure[0], batch), failure[1]
    return NonFiniteError(
        f"{operator}: {_item_name('A', item)} contains NaN or infinity, or overflows: row {row} of L is not "
        f"finite.",
        item,
        row,
    )


def pivot_not_finite(operator: str, batch: Sequence[int], failure: tuple[int, int]) -> NonFiniteError:
    """The error for ``(flat item, -k)``: pivot k (from 1) of a factorisation with pivoting is not finite."""
    item, pivot = batch_index(failure[0], batch), -failure[1]
    return NonFiniteError(
        f"{operator}: {_item_name('A', item)} contains NaN or infinity, or overflows: the remaining "
        f"diagonal at pivot {pivot} is not finite.",
        item,
        pivot,
    )


def rank_deficient(
    operator: str, batch: Sequence[int], failure: tuple[int, int], line: str, consequence: str
) -> RankDeficientError:
    """The error for ``(flat item, index)``: that row or column (``line``) of A depends on those before it."""
    item, index = batch_index(failure[0], batch), failure[1]
    return RankDeficientError(
        f"{operator}: {_item_name('A', item)} does not have full rank: up to rounding, {line} {index} "
        f"depends on those before it. {consequence}",
        item,
        index,
    )


def elimination_failed(
    operator: str, batch: Sequence[int], failure: tuple[int, int], consequence: str = ""
) -> LapgradError:
    """The error for ``(flat item, code)`` of an LU kernel: code > 0 is a zero pivot, code < 0 not finite."""
    flat, code = failure
    item = batch_index(flat, batch)
    name = _item_name("A", item)
    if code < 0:
        return NonFiniteError(
            f"{operator}: {name} contains NaN or infinity, or overflows: pivot {-code} of its LU "
            f"factorisation is not finite.",
            item,
            -code,
        )
    return SingularMatrixError(
        f"{operator}: {name} is singular: pivot {code} of its LU factorisation is exactly zero.{consequence}",
        item,
        code - 1,
    )


def vector_does_not_fit(
    operator: str, argument: str, vector: torch.Tensor, matrix: str, rows: int
) -> ShapeError:
    """The error for a vector on the right-hand side whose length is not the number of rows of the matrix."""
    return ShapeError(
        f"{operator}: {argument} must be a matrix or a batch of matrices, or a vector with the {rows} rows "
        f"of {matrix}, got shape {tuple(vector.shape)}."
    )


def inverse_overflows(operator: str, batch: Sequence[int], flat: int) -> NonFiniteError:
    """Return the error for an item that has a factorisation, but whose inverse overflows."""
    item = batch_index(flat, batch)
    return NonFiniteError(f"{operator}: the inverse of {_item_name('A', item)} overflows.", item)


def overwritten_leaf(operator: str, argument: str) -> RuntimeError:
    """Return the error for overwriting a leaf while gradients are recorded: autograd needs its value."""
    return RuntimeError(
        f"{operator}: overwrite=True would overwrite {argument}, a leaf that requires grad (or a view of "
        f"one). Use overwrite=False, pass a copy, or run under torch.no_grad()."
    )


def overwritten_broadcast(
    operator: str, argument: str, seen: Sequence[int], wanted: Sequence[int]
) -> ShapeError:
    """Return the error for an operand to overwrite that is smaller than the result."""
    return ShapeError(
        f"{operator}: overwrite=True reuses {argument}, which must already have the shape of the result "
        f"{tuple(wanted)}, got {tuple(seen)}."
    )


def overwritten_overlap(operator: str, argument: str, tensor: torch.Tensor) -> ShapeError:
    """Return the error for an operand to overwrite some of whose elements share memory."""
    return ShapeError(
        f"{operator}: overwrite=True reuses {argument}, but its elements share memory "
        f"(shape {tuple(tensor.shape)}, strides {tensor.stride()}). Pass a contiguous copy."
    )


def batch_index(flat: int, batch: Sequence[int]) -> tuple[int, ...]:
    """Position ``flat`` of a row-major enumeration of ``batch``, as an index tuple."""
    index: list[int] = []
    for size in reversed(batch):
        flat, remainder = divmod(flat, size)
        index.append(remainder)
    return tuple(reversed(index))


def _item_name(argument: str, item: tuple[int, ...]) -> str:
    return f"{argument}[{', '.join(map(str, item))}]" if item else argument


def _listing(values: dict[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())
