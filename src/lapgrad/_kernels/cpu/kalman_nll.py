"""kalman_nll: the Kalman filter as a log likelihood, and its adjoint, on the compiled core."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from lapgrad._kernels.native import core

#: Which operands have a dimension of time: y, A, B, Q, R, m, P, c.
_HAS_TIMES = (True, True, True, True, True, False, False, True)

Address = tuple[int, int, int]


def kalman_nll(s: Tensor, *operands: Tensor) -> tuple[int, int, int] | None:
    dense = [operand.contiguous() for operand in operands]
    failure: tuple[int, int, int] | None = core.kalman_nll(
        s.element_size(), _get_addresses(dense), s.data_ptr(), *_get_sizes(dense)
    )
    return failure


def kalman_nll_vjp(gs: Tensor, results: Sequence[Tensor | None], *operands: Tensor) -> None:
    gs, *dense = (operand.contiguous() for operand in (gs, *operands))
    written = [None if result is None else _zero_results(result) for result in results]
    core.kalman_nll_vjp(
        gs.element_size(),
        _get_addresses(dense),
        gs.data_ptr(),
        0,
        _get_addresses(written),
        *_get_sizes(dense),
    )
    for result, found in zip(results, written, strict=True):
        if result is not None and found is not None and found is not result:
            result.copy_(found)


def kalman_nll_and_vjp(
    s: Tensor, gs: Tensor, results: Sequence[Tensor | None], *operands: Tensor
) -> Callable[[], tuple[int, int, int] | None]:
    """A function that sets s to the values and results to the gradients, in one pass fewer than two calls.

    It reads and writes the memory of these tensors, all dense, in each call.
    """
    kept = (s, gs, *results, *operands)  # so that their memory lives as long as the function
    arguments = (
        s.element_size(),
        _get_addresses(operands),
        gs.data_ptr(),
        s.data_ptr(),
        _get_addresses(results),
        *_get_sizes(operands),
    )

    def compute(kept: object = kept) -> tuple[int, int, int] | None:
        for result in results:
            if result is not None:
                result.zero_()
        failure: tuple[int, int, int] | None = core.kalman_nll_vjp(*arguments)
        return failure

    return compute


def _zero_results(result: Tensor) -> Tensor:
    """Return zeros to which the core adds a gradient: ``result`` itself, or a row-major copy to copy back."""
    return result.zero_() if result.is_contiguous() else result.new_zeros(result.shape)


def _get_addresses(tensors: Sequence[Tensor | None]) -> list[Address]:
    """Address, stride between series and stride between times: 0 where there is one for all."""
    return [
        (0, 0, 0) if tensor is None else _get_address(tensor, has_times)
        for tensor, has_times in zip(tensors, _HAS_TIMES, strict=True)
    ]


def _get_address(tensor: Tensor, has_times: bool) -> Address:
    series, times = tensor.shape[0], tensor.shape[1] if has_times else 1
    size = tensor.shape[2 if has_times else 1 :].numel()
    return tensor.data_ptr(), 0 if series == 1 else times * size, 0 if times == 1 else size


def _get_sizes(operands: Sequence[Tensor]) -> tuple[int, int, int, int, int]:
    """Series, times, states, observations, flat directions of the prior (columns of m after the first)."""
    series, times, observations = operands[0].shape
    m = operands[5]
    return series, times, operands[1].shape[-1], observations, m.shape[-1] - 1 if m.dim() == 3 else 0
