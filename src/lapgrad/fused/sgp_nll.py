"""sgp_nll: the criterion of sparse Gaussian process regression, streamed over the data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from lapgrad import _errors, _exceptions
from lapgrad._torch import layout as _layout
from lapgrad._torch.private import skips_dispatcher
from lapgrad.distributed.group import Group, as_group
from lapgrad.fused._sgp import kernel_function as _kernel_function
from lapgrad.fused._sgp import statistics as _statistics
from lapgrad.fused._sgp.bound import check_noise_is_positive, compute_bound, convert_noise_variance
from lapgrad.fused._sgp.evaluation import Evaluation
from lapgrad.fused._sgp.gradient import evaluate
from lapgrad.fused._sgp.kernel_function import KernelFunction
from lapgrad.fused._sgp.problem import Gradients, Inputs, Needs
from lapgrad.fused._sgp.reduction import count_numbers
from lapgrad.fused._sgp.rows import Rows
from lapgrad.fused._sgp.statistics import ARITHMETIC

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_NAME = "fused.sgp_nll"


def sgp_nll(
    kernel: KernelFunction | nn.Module,
    Z: Tensor,
    X: Tensor,
    Y: Tensor,
    noise_var: Tensor | float,
    *,
    jitter: float = 1e-6,
    chunk: int | None = None,
    group: Group | ProcessGroup | None = None,
) -> Tensor:
    """Bound of a sparse GP: s = -sum_j log N(y_j | 0, Q + v I) + k/2v tr(K_ff - Q), Q = K_fu K_uu^-1 K_uf.

    It bounds the negative log likelihood of Gaussian process regression from above (Titsias 2009, the
    collapsed bound), with v = noise_var and the matrices of the kernel at the data X and at U inducing inputs
    Z, which can be learned like everything else. No matrix larger than U x U or U x chunk is ever made: two
    passes over the data give the value and the exact gradient.

    Args:
        kernel: A ``torch.nn.Module`` with ``forward(A, B)``, (n, m) for A (n, d) and B (m, d), and
            ``diag(A)``, (n,): gradients reach its parameters. Or a ``KernelFunction``, the same as pure
            functions.
        Z: (U, d), inducing inputs.
        X: (n, d), inputs.
        Y: (n, k), outputs, independent of each other. A single vector y is ``y[:, None]``.
        noise_var: A positive number, or a scalar tensor.
        jitter: Added to the diagonal of K_uu, in units of its mean.
        chunk: Rows of data that are worked on at a time; None: 4 MB of kernel matrix (64 to 256 MB on a
            GPU, less where little memory is free), or a third of K_uu.
        group: Processes that each pass their own rows X and Y, and the same of everything else: s is that of
            all rows, and gradients of shared tensors are the whole ones, on every process. None: all rows
            are here.

    Returns:
        s, a scalar of the dtype of X.

    Raises:
        NotPositiveDefiniteError: K_uu is not positive definite, in spite of the jitter.
        NonFiniteError: There is a NaN or an infinity in the data or in a kernel matrix.
        OptionError: ``kernel`` is not one, ``noise_var`` is not positive, ``jitter`` negative or ``chunk``
            not positive; or a transform or second derivative is asked for with a group.
        ProcessGroupError: Another process of the group has failed or ended. Errors of lapgrad on one process
            are raised on all of them.
        DTypeError, DeviceError, ShapeError, SizeError: The tensors are not float32 or float64, or do not fit.

    Gradient:
        For Z, X, Y, noise_var and the parameters of the kernel, in closed form up to the kernel matrices:
        gK_c = G K_c + g Y_c^T for each chunk, from where the kernel's own autograd goes on. It is computed
        along with the value, if anything asks for it: under ``torch.no_grad()`` the value alone takes less
        than half of the time. Where noise is so small, and K_uu so close to singular, that rounding errors of
        G would show, chunks are solved for instead. Saves the gradient (which is no larger than the inputs)
        and the inputs. Second derivatives (``create_graph=True``), forward mode and torch.func run through
        the whole matrices, as does ``torch.compile``, which breaks its graph where the kernel is a module.

    Memory:
        3 U^2 + 2 U chunk (3 U chunk where chunks are solved for), and what the kernel's autograd needs for
        one chunk, in float64. On a GPU, for sums and products of ``models.kernels`` that need at most 32
        features, nothing for autograd in chunks, but the features of X and their gradient.
        For float32 data X once more, or its gradient, in float64.

    Cost:
        4 n U^2 + 10/3 U^3 flops (6 n U^2 + 7/3 U^3 where chunks are solved for; on a GPU up to 6 n U^2 and
        13 U^3 in large products, by the inverse of Lu, which it does sooner); 2 n U^2 + 2/3 U^3 for the value
        alone. All arithmetic is in float64: in float32 K_uu of a smooth kernel has no Cholesky factor from a
        few hundred inducing inputs on. float32 data give float32 results, right to the last digits but one
        or two. With a group, n is the number of rows of each process, and each sends U^2 / 2 + U k numbers
        and the gradient.

    Example:
        >>> import torch, lapgrad
        >>> def matrix(A, B, lengthscale):
        ...     return torch.exp(-0.5 * torch.cdist(A / lengthscale, B / lengthscale).square())
        >>> def diagonal(A, lengthscale):
        ...     return A.new_ones(len(A))
        >>> X = torch.linspace(0, 6, 1000)[:, None]
        >>> lengthscale, Z = torch.tensor(1.0, requires_grad=True), X[::100].clone().requires_grad_()
        >>> kernel = lapgrad.fused.KernelFunction(matrix, diagonal, (lengthscale,))
        >>> s = lapgrad.fused.sgp_nll(kernel, Z, X, torch.sin(X), noise_var=0.1)
        >>> s.backward()
        >>> s, Z.grad.shape
        (tensor(-200.40..., grad_fn=<_StreamedBackward>), torch.Size([10, 1]))
    """
    return evaluate_criterion(Evaluation(), kernel, Z, X, Y, noise_var, jitter, chunk, as_group(_NAME, group))


def evaluate_criterion(
    evaluation: Evaluation,
    kernel: KernelFunction | nn.Module,
    Z: Tensor,
    X: Tensor,
    Y: Tensor,
    noise_var: Tensor | float,
    jitter: float,
    chunk: int | None,
    group: Group | None = None,
) -> Tensor:
    """``sgp_nll``, for callers that evaluate one criterion many times: they pass the same ``evaluation``."""
    group = group or Group()
    try:
        function = _kernel_function.as_kernel_function(_NAME, kernel)
        _check_data(Z, X, Y)
        noise_var = convert_noise_variance(_NAME, noise_var, X)
        # On a GPU it is checked only if the evaluation fails: the host would have to wait for it.
        if X.is_cpu:
            check_noise_is_positive(_NAME, noise_var)
        _check_options(noise_var, jitter, chunk)
        tensors = (Z, X, Y, noise_var, *function.parameters)
        is_streamed = skips_dispatcher(tensors)
        if not is_streamed and group.size > 1:
            raise _make_group_error()
    except _exceptions.LapgradError as error:
        if group.size == 1:
            raise
        # The other processes wait for the sum of the statistics.
        raise group.fail(error, count_numbers(len(Z), Y.shape[-1]), Z.device) from error
    if not is_streamed:
        return _compute_composite(function, jitter, tensors)
    width = _statistics.choose_chunk_width(len(X), len(Z), chunk, X.device)
    return _evaluate_streamed(_Options(evaluation, function, jitter, width, group, None), tensors)


def evaluate_rows(
    evaluation: Evaluation,
    kernel: nn.Module,
    Z: Tensor,
    data: Rows,
    target_parameters: Sequence[Tensor],
    noise_var: Tensor,
    jitter: float,
    chunk: int | None,
    group: Group,
) -> Tensor:
    """``sgp_nll`` of rows that are read chunk by chunk, with targets that depend on parameters."""
    function = _kernel_function.as_kernel_function(_NAME, kernel)
    noise_var = convert_noise_variance(_NAME, noise_var, Z)
    check_noise_is_positive(_NAME, noise_var)
    # The rows are read later: X and Y are empty here.
    X, Y = Z.new_empty(0, Z.shape[1]), Z.new_empty(0, data.outputs)
    tensors = (Z, X, Y, noise_var, *function.parameters, *target_parameters)
    if not skips_dispatcher(tensors):
        raise _make_group_error()
    width = _statistics.choose_chunk_width(data.count, len(Z), chunk, Z.device)
    return _evaluate_streamed(_Options(evaluation, function, jitter, width, group, data), tensors)


def _make_group_error() -> _exceptions.OptionError:
    return _exceptions.OptionError(
        f"{_NAME}: transforms of torch.func, torch.compile and second derivatives are not available with a "
        f"group, or with rows that are read in chunks."
    )


class _Options(NamedTuple):
    """What an evaluation needs besides tensors; ``data`` is None where X and Y are tensors."""

    evaluation: Evaluation
    kernel: KernelFunction
    jitter: float
    width: int
    group: Group
    data: Rows | None


def _evaluate_streamed(options: _Options, tensors: Sequence[Tensor]) -> Tensor:
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        value: Tensor = _Streamed.apply(options, *tensors)
        return value
    with torch.no_grad():
        return _evaluate(options, tensors, [False] * len(tensors))[0]


def _evaluate(
    options: _Options, tensors: Sequence[Tensor], needs: Sequence[bool]
) -> tuple[Tensor, Gradients]:
    evaluation, kernel, jitter, width, group, data = options
    inputs = Inputs.from_sequence(tensors)
    return evaluate(evaluation, _NAME, kernel, inputs, Needs.from_sequence(needs), jitter, width, group, data)


def _check_data(Z: Tensor, X: Tensor, Y: Tensor) -> None:
    tensors = {"Z": Z, "X": X, "Y": Y}
    for name, value in tensors.items():
        if _layout.check_matrix(_NAME, name, value).dim() != 2:
            raise _exceptions.ShapeError(
                f"{_NAME}: {name} must be one matrix, got shape {tuple(value.shape)}."
            )
    _layout.check_same_kind(_NAME, **tensors)
    if Z.shape[1] != X.shape[1] or len(X) != len(Y):
        raise _errors.shapes_do_not_fit(_NAME, tensors, "Z must be U x d, X n x d and Y n x k")


def _check_options(noise_var: Tensor, jitter: float, chunk: int | None) -> None:
    if noise_var.dim():
        raise _exceptions.ShapeError(
            f"{_NAME}: noise_var must be a scalar, got shape {tuple(noise_var.shape)}."
        )
    if not jitter >= 0:
        raise _exceptions.OptionError(f"{_NAME}: jitter must not be negative, got {jitter:g}.")
    if chunk is not None and chunk < 1:
        raise _exceptions.OptionError(f"{_NAME}: chunk must be at least 1, got {chunk}.")


class _Streamed(torch.autograd.Function):
    """Computes the gradient along with the value, and keeps it: it is no larger than the inputs."""

    @staticmethod
    def forward(ctx: Any, options: _Options, *tensors: Tensor) -> Tensor:
        value, gradients = _evaluate(options, tensors, ctx.needs_input_grad[1:])
        *of_data, of_parameters = gradients
        ctx.options, ctx.gradients = options, (*of_data, *of_parameters)
        ctx.save_for_backward(*tensors)
        return value

    @staticmethod
    def backward(ctx: Any, gs: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph=True: the gradient is to be differentiated again
            options, needs = ctx.options, ctx.needs_input_grad[1:]
            if options.data is not None or options.group.size > 1:
                raise _make_group_error()
            gradients = _differentiate_composite(options.kernel, options.jitter, ctx.saved_tensors, needs, gs)
        else:
            gradients = [None if gradient is None else gradient * gs for gradient in ctx.gradients]
        return (None, *gradients)


def _compute_composite(kernel: KernelFunction, jitter: float, tensors: Sequence[Tensor]) -> Tensor:
    """Return the criterion from the whole kernel matrices, in differentiable operators."""
    Z, X, Y, noise_var, *parameters = [tensor.to(ARITHMETIC) for tensor in tensors]
    Kuu, Kuf = kernel.matrix(Z, Z, *parameters), kernel.matrix(Z, X, *parameters)
    mean = Kuu.diagonal().mean() if len(Z) else Kuu.sum()
    Kuu = Kuu + jitter * mean * torch.eye(len(Z), dtype=Z.dtype, device=Z.device)
    value = compute_bound(_NAME, Kuu, Kuf, kernel.diagonal(X, *parameters).sum(), Y, noise_var)
    return value.to(tensors[0].dtype)


def _differentiate_composite(
    kernel: KernelFunction, jitter: float, tensors: Sequence[Tensor], needs: Sequence[bool], gs: Tensor
) -> list[Tensor | None]:
    """Return the gradients of the composite, recorded for autograd themselves."""
    wanted = [tensor for tensor, need in zip(tensors, needs, strict=True) if need]
    value = _compute_composite(kernel, jitter, tensors)
    found = iter(torch.autograd.grad(value, wanted, gs, create_graph=True, allow_unused=True))
    return [next(found) if need else None for need in needs]
