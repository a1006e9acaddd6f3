"""Operators on ``DTensor``: batches of matrices that are sharded over processes stay sharded.

All operands of a registered operator have the same leading dimensions, the batch, and so have its results.
The items of a batch are independent of each other, so a batch that is sharded along one of these dimensions
is computed where it is, forward and backward, and nothing is sent. DTensor gathers an operand that is sharded
in another way (the rows of a matrix, or a pending sum) on all processes before the call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from lapgrad import fused as _fused  # noqa: F401  (registers its operators)
from lapgrad import linalg as _linalg  # noqa: F401
from lapgrad._torch.private import list_registered_operators, set_sharding_rule

#: Dimensions of one item of the first operand, where it is not a matrix.
_ITEM_DIMENSIONS = {"makediag": 1, "maketrian": 1}
#: Operators on series: matrices that all series share have a first dimension of 1.
_SERIES = {"kalman_nll": 8, "kalman_nll_vjp": 8}

#: Placements of the results, and of the arguments (None for those that are no tensors).
_Sharding = tuple[list[Any], list[Any]]


def register_shardings() -> None:
    """Let the operators of lapgrad work on ``DTensor`` operands; call it once in each process.

    A batch that is sharded along a leading dimension stays sharded, forward and backward, without
    communication. Operands that are sharded in another way are gathered on all processes first. A
    factorisation that fails raises an error on the processes that have the failed item: ``potrf_ex`` returns
    a status instead. Gradients use ``tril`` and ``triu`` of torch, which get a rule as well: torch would
    gather their operands.

    ``pstrf``, ``linalg.lda``, and ``fused.kalman_nll`` with ``diffuse``, make tensors of their own. Call them
    inside of ``torch.distributed.tensor.experimental.implicit_replication()``.

    Example:
        >>> from lapgrad.distributed import register_shardings
        >>> register_shardings()
    """
    for operator in list_registered_operators("lapgrad"):
        arguments = operator._schema.arguments
        tensors = sum("Tensor" in str(argument.type) for argument in arguments)
        name = operator._opname
        results = len(operator._schema.returns)
        if name in _SERIES:
            rule = _make_rule_of_series(_SERIES[name], results)
        else:
            rule = _make_rule_of_batches(_ITEM_DIMENSIONS.get(name, 2), results)
        # Results depend on all flags: they count when DTensor looks for a call that it has seen before.
        set_sharding_rule(operator, rule, tensors)
    for triangle in (torch.ops.aten.tril.default, torch.ops.aten.triu.default):
        set_sharding_rule(triangle, _make_rule_of_batches(2, 1), 1)


def _make_rule_of_batches(item: int, results: int) -> Callable[..., list[_Sharding]]:
    """Return the rule of an operator whose first operand has ``item`` dimensions besides the batch."""

    def list_shardings(*arguments: Any) -> list[_Sharding]:
        from torch.distributed.tensor import Replicate, Shard

        batch = arguments[0].ndim - item
        placements = [Replicate(), *(Shard(dimension) for dimension in range(batch))]
        return [
            ([placement] * results, [placement if _is_tensor(value) else None for value in arguments])
            for placement in placements
        ]

    return list_shardings


def _make_rule_of_series(operands: int, results: int) -> Callable[..., list[_Sharding]]:
    """Return the rule of an operator on N series; some of its operands may be shared by all series.

    The gradient of a shared operand is a sum over the series: a part of it is on each process.
    """

    def list_shardings(*arguments: Any) -> list[_Sharding]:
        from torch.distributed.tensor import Partial, Replicate, Shard

        count = max(value.shape[0] for value in arguments if _is_tensor(value))

        def place(value: Any) -> Any:
            if not _is_tensor(value):
                return None
            return Shard(0) if value.shape[0] == count else Replicate()

        inputs = [place(value) for value in arguments]
        outputs: list[Any] = [Shard(0)]
        if results > 1:
            outputs = [Partial() if isinstance(given, Replicate) else given for given in inputs[:operands]]
        whole: _Sharding = (
            [Replicate()] * results,
            [Replicate() if _is_tensor(v) else None for v in arguments],
        )
        return [whole, (outputs, inputs)]

    return list_shardings


def _is_tensor(value: Any) -> bool:
    """Return whether an argument of a rule stands for a tensor: DTensor passes descriptions of them."""
    return isinstance(getattr(value, "shape", None), torch.Size | Sequence) and hasattr(value, "placements")
