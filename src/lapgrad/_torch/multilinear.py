"""Forward mode of operators that are linear in each of their operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from lapgrad._torch.define import Jvp, Operator


def make_jvp(get_operator: Callable[[], Operator]) -> Jvp:
    """Return the jvp of F, linear in each operand: dF = F(dA, B) + F(A, dB).

    Args:
        get_operator: Returns F, which is defined after its jvp. An F of several operands saves all of them.
    """

    def push_forward(saved: Sequence[Tensor], flags: Sequence[Any], *tangents: Tensor | None) -> Tensor:
        call = get_operator().call
        total: Tensor | None = None
        for position, tangent in enumerate(tangents):
            if tangent is not None:
                part: Tensor = call(*saved[:position], tangent, *saved[position + 1 :], *flags)
                total = part if total is None else total + part
        assert total is not None, "a jvp is asked for with at least one tangent"
        return total

    return push_forward
