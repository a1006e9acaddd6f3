"""torch's own samples of its operators (OpInfo), and how a call is compared with and without lapgrad."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

import lapgrad
from lapgrad._kernels import cpu as _cpu

#: Operators of torch that are overridden, and those made of them: name, or name/variant.
OPERATORS = (
    "linalg.cholesky",
    "linalg.cholesky_ex",
    "cholesky",
    "cholesky_inverse",
    "cholesky_solve",
    "linalg.solve_triangular",
    "triangular_solve",
    "linalg.eigh",
    "linalg.eigvalsh",
    "linalg.svd",
    "linalg.svdvals",
    "svd",
    "linalg.qr",
    "qr",
    "linalg.inv",
    "linalg.inv_ex",
    "linalg.det",
    "logdet",
    "linalg.slogdet",
    "linalg.solve",
    "linalg.solve_ex",
    "linalg.lu_factor",
    "linalg.lu_factor_ex",
    "linalg.lu_solve",
    "linalg.pinv",
    "linalg.pinv/hermitian",
    "pinverse",
    "linalg.lstsq/grad_oriented",
    "linalg.matrix_power",
    "linalg.matrix_rank",
    "linalg.cond",
    "linalg.tensorinv",
    "linalg.tensorsolve",
    "norm/nuc",
    "isclose",
)

#: Those without a derivative.
WITHOUT_GRADIENT = {"linalg.matrix_rank", "isclose"}

#: Values that torch computes without any of the overridden operators; gradients are made of these.
LEFT_TO_TORCH = {"linalg.lu_solve", "linalg.lstsq/grad_oriented"}
if not _cpu.is_available():
    LEFT_TO_TORCH.add("isclose")

#: Forward mode over reverse mode is wrong in torch itself.
WRONG_FORWARD_OVER_REVERSE = {"triangular_solve"}


@functools.cache
def _all_operators() -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own test code, as it is imported
        from torch.testing._internal.common_methods_invocations import op_db
    return {op.name if not op.variant_test_name else f"{op.name}/{op.variant_test_name}": op for op in op_db}


def find_operator(name: str) -> Any:
    """Return the OpInfo of an operator."""
    return _all_operators()[name]


def draw_samples(
    name: str, dtype: torch.dtype = torch.float64, *, requires_grad: bool = False, most: int | None = None
) -> Iterator[Any]:
    """Return the samples that are not empty; at most ``most`` of them, spread evenly over all."""
    torch.manual_seed(0)
    drawn = find_operator(name).sample_inputs("cpu", dtype, requires_grad=requires_grad)
    samples = [sample for sample in drawn if all(t.numel() for t in list_tensors(sample))]
    step = 1 if most is None else max(1, len(samples) // most)
    return iter(samples[::step][:most])


def list_tensors(sample: Any) -> list[Tensor]:
    """All operands of a sample."""
    leaves, _ = tree_flatten((sample.input, sample.args, sample.kwargs))
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


def split_differentiable(sample: Any) -> tuple[list[Tensor], Callable[..., Any]]:
    """Return the operands that require a gradient, and a function from such operands to all arguments."""
    leaves, structure = tree_flatten((sample.input, sample.args, sample.kwargs))
    positions = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.requires_grad]

    def rebuild(*operands: Tensor) -> Any:
        complete = list(leaves)
        for position, operand in zip(positions, operands, strict=True):
            complete[position] = operand
        return torch.utils._pytree.tree_unflatten(complete, structure)

    return [leaves[position] for position in positions], rebuild


def call(operator: Any, sample: Any) -> Any:
    """Return the results of torch's function on a sample."""
    return operator.op(sample.input, *sample.args, **sample.kwargs)


def select_comparable(sample: Any, results: Any) -> list[Tensor]:
    """Return the tensors in ``results`` that do not depend on the signs of vectors."""
    processed = sample.output_process_fn_grad(results)
    return [leaf for leaf in tree_flatten(processed)[0] if isinstance(leaf, Tensor)]


def detach_all(value: Any) -> Any:
    """Return a copy whose tensors are detached clones."""
    return tree_map(lambda x: x.detach().clone() if isinstance(x, Tensor) else x, value)


def accelerate_everything() -> Any:
    """Return a context in which lapgrad takes every call that it can."""
    return lapgrad.accelerate(always=True)
