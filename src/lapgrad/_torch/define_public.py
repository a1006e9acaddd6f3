"""Derivatives through PyTorch's public interfaces only: the substitute when a private name has gone missing.

Neither public interface is complete. ``register_autograd`` knows no forward mode and no torch.func; a
``Function`` with a jvp cannot be traced by torch.compile. So compiled code uses the
former, and all other code the latter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.compiler import is_compiling

if TYPE_CHECKING:
    from lapgrad._torch.define import Formulas, VmapRule


def attach(dispatched: Any, formulas: Formulas, vmap: VmapRule) -> Callable[..., Any]:
    """Give the registered operator its derivatives and return the function to call it by."""
    operands = len(formulas.saves)

    def setup_context(ctx: Any, inputs: Sequence[Any], output: Any) -> None:
        outputs = output if isinstance(output, tuple) else (output,)
        values = (*inputs[:operands], *outputs)
        saved = [values[slot] for slot in formulas.slots]
        ctx.flags = inputs[operands:]
        ctx.save_for_backward(*saved)
        ctx.set_materialize_grads(False)

    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        needs = ctx.needs_input_grad
        if all(cotangent is None for cotangent in cotangents):
            return (None,) * len(needs)
        gradients = formulas.vjp(needs[:operands], ctx.saved_tensors, ctx.flags, *cotangents)
        return (*gradients, *(None,) * (len(needs) - operands))

    def setup_function_context(ctx: Any, inputs: Sequence[Any], output: Any) -> None:
        setup_context(ctx, inputs, output)
        ctx.save_for_forward(*ctx.to_save)
        if formulas.constant_results:
            ctx.mark_non_differentiable(*[output[position] for position in formulas.constant_results])

    def jvp(ctx: Any, *tangents: Tensor | None) -> Any:
        return formulas.jvp(ctx.saved_tensors, ctx.flags, *tangents[:operands])

    def rule(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, Any]:
        mapped = vmap(call, info.batch_size, in_dims, arguments)
        return mapped, (0,) * len(mapped) if isinstance(mapped, tuple) else 0

    torch.library.register_autograd(dispatched, backward, setup_context=setup_context)
    methods: dict[str, Callable[..., Any]] = {
        "forward": lambda *arguments: dispatched(*arguments),
        "setup_context": setup_function_context,
        "backward": backward,
        "jvp": jvp,
        "vmap": rule,
    }
    function: Any = type(
        dispatched.name(), (Function,), {name: staticmethod(method) for name, method in methods.items()}
    )

    def call(*arguments: Any) -> Any:
        return dispatched(*arguments) if is_compiling() else function.apply(*arguments)

    return call
