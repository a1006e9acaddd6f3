"""kalman_nll: the negative log likelihood of a linear Gaussian state space model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from lapgrad import _errors
from lapgrad._formulas import kalman as _kalman
from lapgrad._kernels.table import has_kernel, lookup
from lapgrad._torch.define import Formulas, define, define_fused
from lapgrad._torch.private import reshape_fresh
from lapgrad.fused import _series

_NAME = "fused.kalman_nll"


def kalman_nll(
    y: Tensor,
    A: Tensor,
    B: Tensor,
    Q: Tensor,
    R: Tensor,
    m: Tensor,
    P: Tensor,
    *,
    state_offset: Tensor | float | None = None,
    observation_offset: Tensor | float | None = None,
    diffuse: Tensor | int | None = None,
) -> Tensor:
    """Negative log likelihood of a linear Gaussian state space model: s = -log p(y[0], ..., y[T-1]).

    The states h and observations y of a series follow

        h[0] ~ N(m, P),  h[t+1] ~ N(A[t] h[t] + a[t], Q[t]),  y[t] ~ N(B[t] h[t] + b[t], R[t]).

    The Kalman filter gives s exactly. NaN in y is an observation that is missing, single entries or whole
    steps. Series of different length are padded with NaN at the end. Time is a dimension like a batch: it
    broadcasts, with size 1 where something does not vary, and can be left out of what is a single matrix or
    vector.

    With ``diffuse`` the first state is h[0] ~ N(m, P) + D d with a flat prior of d, treated exactly: s is the
    diffuse likelihood of Durbin and Koopman, -log of the integral of p(y | d) over d.

    Args:
        y: (*batch, T, p), the observations; NaN: missing.
        A: (*batch, T, n, n), or (n, n), the transition from t to t + 1. The last one is not used.
        B: (*batch, T, p, n), or (p, n), the map from state to observation.
        Q: (*batch, T, n, n), or (n, n), covariance of the transition: symmetric, positive semi-definite.
        R: (*batch, T, p, p), or (p, p), covariance of the observations: symmetric, positive semi-definite.
        m: (*batch, n), mean of the first state, before anything is observed.
        P: (*batch, n, n), covariance of the first state: symmetric, positive semi-definite.
        state_offset: (*batch, T, n), or (n,), or a number: a in the formula above.
        observation_offset: (*batch, T, p), or (p,), or a number: b in the formula above.
        diffuse: (*batch, n, k), directions D in which the prior is flat, k at most n; a number k: the first k
            states; None: none. A
            covariance P
            of the order of the data in these directions does not change s, and helps the arithmetic.

    Returns:
        s, (*batch).

    Raises:
        NotPositiveDefiniteError: The covariance B P B^T + R of an observation given those before it is not
            positive definite; names series and step. ``item`` is the index of the series and the step.
        NonFiniteError: It, or the observation itself, is not finite. Infinities in y count; NaN does not.
        DomainError: The observations of a series do not determine d.
        DTypeError, DeviceError, ShapeError, SizeError: The operands are not float32 or float64 tensors that
            fit.

    Gradient:
        With respect to all operands, by the adjoint of the filter: walking back over the steps with gm, gP,
        the cotangents of the predicted moments (csrc/small/lane_kalman.h has the formulas). Those of Q, R and
        P are symmetric; what is missing in y has gradient zero. Saves the operands and nothing of the filter:
        the backward runs it again, and keeps the predicted moments of a part of the steps at a time.

    Memory:
        forward 0, backward 1
        Besides: half a megabyte per thread for the moments of some steps, and those of every k-th step.
        On CUDA per series, and no more than 128 MiB together with one sum for each series of every gradient
        that series share: beyond, the series are served in chunks.

    Cost:
        forward 4 n^3 + 8 n^2 p, backward 8 n^3 + 20 n^2 p flops per step and series, less where A has zeros:
        n^3 counts the entries of A that are not zero, times n. k diffuse directions add 4 n^2 k and 8 n^2 k.
        On CUDA one launch serves all series, of up to 32 states and 16 observations; larger models, and those
        with ``diffuse``, take one step after the other in plain PyTorch, which is slow. Gradients are the
        same in every run.

    Example:
        A random walk, seen with noise; the second observation is missing.

        >>> import torch, lapgrad
        >>> y, one = torch.tensor([[1.0], [torch.nan], [2.0]]), torch.ones(1, 1)
        >>> lapgrad.fused.kalman_nll(y, one, one, 0.5 * one, one, torch.zeros(1), one)
        tensor(3.3426)
    """
    operands = _series.prepare_operands(_NAME, y, A, B, Q, R, m, P, state_offset, observation_offset, diffuse)
    s: Tensor = operator.call(*operands.flat)
    return reshape_fresh(s, operands.batch)


def has_joint_kernel(y: Tensor) -> bool:
    """Return whether the device of y computes values and gradients in one pass (``prepare_gradient``)."""
    return has_kernel("kalman_nll_and_vjp", y)


def prepare_gradient(flat: Sequence[Tensor], results: Sequence[Tensor | None]) -> Callable[[], Tensor]:
    """Return a function that computes values, and writes gradients of their sum into ``results``.

    It does without autograd. Each call reads the operands anew, and returns the same tensor (N,) with the
    value of each series.

    Args:
        flat: The operands as ``_series.prepare_operands`` returns them.
        results: For each operand a dense tensor of its shape, or None: not wanted.

    Raises:
        NotPositiveDefiniteError, NonFiniteError, DomainError: As ``kalman_nll``; by the function.
    """
    y = flat[0]
    s = y.new_empty(y.shape[0])
    dense = [operand.contiguous() for operand in flat]
    compute = lookup("kalman_nll_and_vjp", y)(s, y.new_ones(y.shape[0]), results, *dense)

    def evaluate() -> Tensor:
        failure = compute()
        if failure is not None:
            raise _errors.innovation_failed(_NAME, y.shape[:1], y.shape[-1], failure)
        return s

    return evaluate


def _evaluate(*model: Tensor) -> Tensor:
    y = model[0]
    s = y.new_empty(y.shape[0])
    failure = lookup("kalman_nll", y)(s, *model)
    if failure is not None:
        raise _errors.innovation_failed(_NAME, y.shape[:1], y.shape[-1], failure)
    return s


def _compute_vjp(*arguments: Any) -> tuple[Tensor, ...]:
    """Gradients of the operands whose bit is set in ``wanted``, the last argument; empty for others."""
    *model, gs, wanted = arguments
    results = _fake_vjp(*arguments)
    asked = [result if wanted >> i & 1 else None for i, result in enumerate(results)]
    lookup("kalman_nll_vjp", gs)(gs, asked, *model)
    return results


def _compute_vjp_composite(*arguments: Any) -> tuple[Tensor, ...]:
    """The gradients by differentiable operations in float64, in which no setting of torch rounds products."""
    *tensors, gs, wanted = arguments
    found = _kalman.compute_vjp(_kalman.Model(*(tensor.double() for tensor in tensors)), gs.double())
    return tuple(
        found[name].to(gs.dtype) if wanted >> i & 1 else tensors[i].new_empty(0)
        for i, name in enumerate(_kalman.OPERANDS)
    )


def _fake_vjp(*arguments: Any) -> tuple[Tensor, ...]:
    *model, _, wanted = arguments
    return tuple(
        operand.new_empty(operand.shape if wanted >> i & 1 else 0) for i, operand in enumerate(model)
    )


def _pack_bits(flags: Sequence[bool]) -> int:
    return sum(1 << i for i, flag in enumerate(flags) if flag)


def _vjp(
    needs: Sequence[bool], saved: Sequence[Tensor], flags: Sequence[Any], gs: Tensor | None
) -> tuple[Tensor | None, ...]:
    if gs is None:
        return (None,) * len(needs)
    gradients = operator_vjp.call(*saved, gs, _pack_bits(needs))
    return tuple(gradient if need else None for gradient, need in zip(gradients, needs, strict=True))


def _jvp(saved: Sequence[Tensor], flags: Sequence[Any], *tangents: Tensor | None) -> Tensor:
    """ds, (series,): for each series the sum of gX dX over the operands X."""
    y = saved[0]
    series = y.shape[0]
    wanted = _pack_bits([tangent is not None for tangent in tangents])
    # Operands that series share are expanded, so that each series gets a gradient of its own.
    apart = [operand.expand(series, *operand.shape[1:]) for operand in saved]
    gradients = operator_vjp.call(*apart, y.new_ones(series), wanted)
    ds = y.new_zeros(series)
    for gradient, tangent in zip(gradients, tangents, strict=True):
        if tangent is not None:
            ds = ds + (gradient * tangent).sum(tuple(range(1, gradient.dim())))
    return ds


def _vmap(dispatched: Any, size: int, in_dims: Sequence[int | None], arguments: Sequence[Any]) -> Tensor:
    """The vmap rule: the mapped dimension is merged into that of the series; shared operands stay shared."""
    series = _series.count_series(arguments[0], in_dims[0])
    merged = [
        operand
        if dim is None and operand.shape[0] == 1 and i > 0
        else _series.merge_mapped(operand, dim, size, series)
        for i, (operand, dim) in enumerate(zip(arguments, in_dims, strict=True))
    ]
    result: Tensor = dispatched(*merged)
    return reshape_fresh(result, (size, series))


def _vmap_vjp(
    dispatched: Any, size: int, in_dims: Sequence[int | None], arguments: Sequence[Any]
) -> tuple[Tensor, ...]:
    """The vmap rule of the gradient: each mapped item has its own, also of operands that items share."""
    *operands, wanted = arguments
    series = _series.count_series(operands[0], in_dims[0])
    merged = [
        _series.merge_mapped(operand, dim, size, series)
        for operand, dim in zip(operands, in_dims, strict=False)
    ]
    results = []
    for i, gradient in enumerate(dispatched(*merged, wanted)):
        if not wanted >> i & 1:
            results.append(gradient.new_empty(size, 0))
            continue
        gradient = gradient.reshape(size, series, *gradient.shape[1:])
        shared = _series.count_series(operands[i], in_dims[i]) != series
        results.append(gradient.sum(1, keepdim=True) if shared else gradient)
    return tuple(results)


_TENSORS = ", ".join(f"Tensor {name}" for name in _kalman.OPERANDS)
_EVERYTHING = tuple(range(len(_kalman.OPERANDS)))

operator_vjp = define_fused(
    "kalman_nll_vjp",
    f"({_TENSORS}, Tensor gs, int wanted) -> ({', '.join(['Tensor'] * len(_EVERYTHING))})",
    kernel=_compute_vjp,
    fake=_fake_vjp,
    composite=_compute_vjp_composite,
    vmap=_vmap_vjp,
)

operator = define(
    "kalman_nll",
    f"({_TENSORS}) -> Tensor",
    kernel=_evaluate,
    fake=lambda y, *others: y.new_empty(y.shape[0]),
    formulas=Formulas(saves=(_EVERYTHING,) * len(_EVERYTHING), vjp=_vjp, jvp=_jvp),
    vmap=_vmap,
)
