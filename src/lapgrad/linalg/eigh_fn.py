"""eigh_fn: functions of a symmetric matrix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, is_grad_enabled

from lapgrad import _errors, _exceptions
from lapgrad._formulas import gaps as _gaps
from lapgrad._kernels.table import has_kernel, lookup, make_shortcut
from lapgrad._torch.define import Formulas, define, define_fused
from lapgrad._torch.layout import allocate_like, check_number, check_square_matrix, check_tolerance
from lapgrad._torch.private import skips_dispatcher
from lapgrad.linalg import _divided_differences
from lapgrad.ops import copyltu as _copyltu
from lapgrad.ops import gemm2 as _gemm2
from lapgrad.ops import gemmt as _gemmt
from lapgrad.ops import syevd as _syevd

_NAME = "linalg.eigh_fn"


def eigh_fn(
    A: Tensor,
    f: str | Callable[[Tensor], Tensor],
    *,
    exponent: float | None = None,
    lower: bool = True,
    tol: float | None = None,
) -> Tensor:
    """Function of a symmetric matrix: B = U^T diag(f(l)) U, for A = U^T diag(l) U.

    Args:
        A: (*batch, n, n), symmetric. Only the named triangle is read.
        f: "exp", "log", "sqrt", "rsqrt" (the inverse of the root), "inv", "power" (with ``exponent``), or a
            function that maps a tensor entry by entry, made of operators with derivatives. It is also called
            between eigenvalues that are close, and must be smooth on that scale (eps^(1/4) of their size).
        exponent: For "power". A whole number (up to 64 in size) takes every matrix, others positive ones.
        lower: Read the lower triangle, else the upper one.
        tol: Up to this, relative to the largest |eigenvalue|, one that is negative counts as a zero with a
            rounding error ("sqrt", and "power" with a positive exponent); 8 (1 + sqrt(n)) eps when None.

    Returns:
        B, (*batch, n, n), symmetric to the last bit.

    Raises:
        DomainError: Names the first item with an eigenvalue where f is not defined or not finite.
        NonFiniteError: Names the first item with NaN or infinity in the triangle that is read.
        ConvergenceError: Names the first item whose eigenvalues did not converge.
        OptionError: ``f`` is not a known name, ``exponent`` is missing, superfluous or no number, ``tol`` is
            negative.
        DTypeError, ShapeError, SizeError: ``A`` is not a batch of square float32 or float64 matrices, or
            ``f`` does not return a tensor of the shape of its argument.

    Gradient:
        gA = U^T (F o (U sym(gB) U^T)) U with the divided differences F_ij = (f(l_i) - f(l_j)) / (l_i - l_j),
        F_ij = f'(l_i) where both are equal (Daleckii and Krein): exact at repeated eigenvalues, where a
        gradient through ``syevd`` does not exist, and without cancellation at close ones. Forward mode is the
        same map of dA. Where it is infinite (a root at two eigenvalues that are zero) F is 0. Saves U and the
        eigenvalues; for a function of your own U and F, with the graph of F for second derivatives. Such a
        function may be compiled (torch.compile, forward and backward); compiled autograd takes it from a
        compiled forward only: of an eager one it cannot trace the graph of F.

        Second and higher derivatives differentiate this formula, with the derivative of U: right at distinct
        eigenvalues, with errors that grow as eps / gap; finite at repeated ones, but not exact.

    Memory:
        forward 3, backward 3
        The eigendecomposition works in two buffers beside U; batches of matrices up to order 32 need none.
        For f="sqrt", "rsqrt" and "inv"; while F is made, the others take up to 8 buffers.

    Cost:
        forward about 10 n^3, backward 6 n^3 flops.

    Example:
        >>> import torch, lapgrad
        >>> A = torch.tensor([[5.0, 4.0], [4.0, 5.0]])
        >>> lapgrad.linalg.eigh_fn(A, "sqrt")
        tensor([[2.0000, 1.0000],
                [1.0000, 2.0000]])
    """
    A = check_square_matrix(_NAME, "A", A)
    check_tolerance(_NAME, "tol", tol)
    if (exponent is not None) != (f == "power"):
        raise _exceptions.OptionError(
            f'{_NAME}: f="power", and no other, takes an exponent; got {exponent!r}.'
        )
    if exponent is not None:
        check_number(_NAME, "exponent", exponent)
    if not callable(f) and f not in _divided_differences.NAMES:
        raise _errors.unknown_option(_NAME, "f", f, _divided_differences.NAMES)
    if not callable(f):
        return operator.call(A, lower, f, exponent or 0.0, tol)[0]
    U, eigenvalues = _syevd.operator.call(A, lower, _syevd.QUIET, None)
    rule, name = _divided_differences.make_rule(f), getattr(f, "__name__", "f")
    values = rule.value(eigenvalues)
    if not isinstance(values, Tensor) or values.shape != eigenvalues.shape:
        seen = f"shape {tuple(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
        raise _exceptions.ShapeError(
            f"{_NAME}: f must return a tensor of the shape of its argument, {tuple(eigenvalues.shape)}, got "
            f"{seen}."
        )
    if skips_dispatcher((A,)) and not (A.requires_grad and is_grad_enabled()):
        with torch.no_grad():
            return _compose(U, eigenvalues, values, name)
    return operator_given.call(A, U, eigenvalues, values, rule.differences(eigenvalues), name)


def _multiply_symmetric(U: Tensor, W: Tensor, transpose: bool) -> Tensor:
    """U^T W, or U W^T, which is known to be symmetric: one triangle, mirrored."""
    triangle = _gemmt.operator.call(U, W, True, transpose, not transpose, 1.0)
    return _copyltu.operator.consume(triangle, True)


def _find_rule(eigenvalues: Tensor, f: str, exponent: float, tol: float | None) -> _divided_differences.Rule:
    relative = _gaps.choose_tolerance(eigenvalues.shape[-1], eigenvalues.dtype, tol)
    return _divided_differences.find_rule(f, exponent, relative)


def _compose(U: Tensor, eigenvalues: Tensor, values: Tensor, name: str) -> Tensor:
    """B = U^T diag(values) U."""
    if not bool(torch.isfinite(values).all()):
        raise _find_outside_domain(eigenvalues, values, name)
    return _multiply_symmetric(U, values.unsqueeze(-1) * U, True)


def _find_outside_domain(eigenvalues: Tensor, values: Tensor, name: str) -> _exceptions.DomainError:
    flat = int((~torch.isfinite(values)).flatten().int().argmax())
    *item, _ = _errors.batch_index(flat, values.shape)
    return _errors.outside_domain(
        _NAME, name, tuple(item), float(eigenvalues.flatten()[flat]), float(values.flatten()[flat])
    )


def _apply_derivative(U: Tensor, differences: Tensor, X: Tensor) -> Tensor:
    """U^T (F o (U sym(X) U^T)) U: the derivative along X, and its own adjoint."""
    inside = _gemm2.multiply(U, X + X.mT, alpha=0.5)
    # All steps use one name, so that a buffer that is no longer needed is freed for the next step.
    inside = _multiply_symmetric(U, inside, False)
    inside = differences * inside
    inside = _gemm2.multiply(inside, U)
    return _multiply_symmetric(U, inside, True)


def _apply(
    A: Tensor, lower: bool, f: str, exponent: float, tol: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    U, eigenvalues = _syevd.decompose(_NAME, A, lower)
    if has_kernel("eigh_fn", A):
        B = allocate_like(U)
        relative = _gaps.choose_tolerance(eigenvalues.shape[-1], eigenvalues.dtype, tol)
        if lookup("eigh_fn", A)(B, U, eigenvalues, f, exponent, relative) is None:
            return B, U, eigenvalues
    values = _find_rule(eigenvalues, f, exponent, tol).value(eigenvalues)
    return _compose(U, eigenvalues, values, f), U, eigenvalues


def _compute_vjp(
    U: Tensor, eigenvalues: Tensor, gB: Tensor, f: str, exponent: float, tol: float | None
) -> Tensor:
    if not has_kernel("eigh_fn_vjp", U):
        return _compute_vjp_composite(U, eigenvalues, gB, f, exponent, tol)
    gA = allocate_like(U)
    relative = _gaps.choose_tolerance(eigenvalues.shape[-1], eigenvalues.dtype, tol)
    lookup("eigh_fn_vjp", U)(gA, U.contiguous(), eigenvalues.contiguous(), gB, f, exponent, relative)
    return gA


def _compute_vjp_composite(
    U: Tensor, eigenvalues: Tensor, gB: Tensor, f: str, exponent: float, tol: float | None
) -> Tensor:
    differences = _find_rule(eigenvalues, f, exponent, tol).differences(eigenvalues)
    return _apply_derivative(U, differences, gB)


def _vjp(
    needs: Sequence[bool],
    saved: Sequence[Tensor],
    flags: Sequence[Any],
    gB: Tensor | None,
    gU: Tensor | None,
    slope: Tensor | None,
) -> tuple[Tensor]:
    """U and the eigenvalues are results, too: second derivatives reach them through the formula of B."""
    (U, eigenvalues), (_, *function) = saved, flags
    parts = []
    if gB is not None:
        parts.append(operator_vjp.call(U, eigenvalues, gB, *function))
    if gU is not None or slope is not None:
        parts.append(_syevd.operator_vjp.call(U, eigenvalues, gU, slope, _syevd.QUIET, None))
    return (parts[0] if len(parts) == 1 else parts[0] + parts[1],)


def _jvp(saved: Sequence[Tensor], flags: Sequence[Any], dA: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    (U, eigenvalues), (lower, *function) = saved, flags
    dB = _compute_vjp_composite(U, eigenvalues, dA, *function)
    return dB, *_syevd.compute_jvp(saved, (lower, _syevd.QUIET, None), dA)


def _fake(
    A: Tensor, lower: bool, f: str, exponent: float, tol: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    return A.new_empty(A.shape), A.new_empty(A.shape), A.new_empty(A.shape[:-1])


def _apply_given(
    A: Tensor, U: Tensor, eigenvalues: Tensor, values: Tensor, differences: Tensor, name: str
) -> Tensor:
    return _compose(U, eigenvalues, values, name)


def _vjp_given(
    needs: Sequence[bool], saved: Sequence[Tensor], flags: Sequence[Any], gB: Tensor
) -> tuple[Tensor | None, ...]:
    """All of the derivative goes to A. Derivatives of U and F count when this formula is differentiated."""
    U, differences = saved
    return _apply_derivative(U, differences, gB), None, None, None, None


def _jvp_given(saved: Sequence[Tensor], flags: Sequence[Any], dA: Tensor, *_: Tensor | None) -> Tensor:
    U, differences = saved
    return _apply_derivative(U, differences, dA)


_U, _EIGENVALUES = 2, 3

operator_vjp = define_fused(
    "eigh_fn_vjp",
    "(Tensor U, Tensor eigenvalues, Tensor gB, str f, float exponent, float? tol) -> Tensor",
    kernel=_compute_vjp,
    fake=lambda U, eigenvalues, gB, f, exponent, tol: gB.new_empty(gB.shape),
    composite=_compute_vjp_composite,
    shortcut=make_shortcut("eigh_fn_vjp"),
)

operator = define(
    "eigh_fn",
    "(Tensor A, bool lower, str f, float exponent, float? tol) -> (Tensor, Tensor, Tensor)",
    kernel=_apply,
    fake=_fake,
    formulas=Formulas(saves=((_U, _EIGENVALUES),), vjp=_vjp, jvp=_jvp),
    shortcut=make_shortcut("eigh_fn"),
)

_GIVEN_U, _GIVEN_DIFFERENCES = 1, 4

# A function that has no name cannot be a flag: its values and divided differences are operands.
operator_given = define(
    "eigh_fn_given",
    "(Tensor A, Tensor U, Tensor eigenvalues, Tensor values, Tensor differences, str f) -> Tensor",
    kernel=_apply_given,
    fake=lambda A, U, eigenvalues, values, differences, f: A.new_empty(A.shape),
    formulas=Formulas(saves=((_GIVEN_U, _GIVEN_DIFFERENCES), (), (), (), ()), vjp=_vjp_given, jvp=_jvp_given),
)
