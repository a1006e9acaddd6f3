"""The operator factory: from kernel and derivative formulas to an operator that works everywhere in PyTorch.

An operator is registered once with the dispatcher: schema, CPU and CUDA kernel, fake kernel (shapes only),
vmap rule and an Autograd kernel of its own. torch.compile, torch.export, torch.func, forward mode and tensor
subclasses use this registration.

The dispatcher costs several microseconds per call, which for a 4x4 matrix is more than the mathematics. So
every operator also has a fast path: it checks whether the call is a plain eager one, and then runs the kernel
directly, or a ``torch.autograd.Function`` around it when gradients are recorded.

Formulas are written in terms of other operators of this library, which try their fast paths first, and
therefore have derivatives themselves. There are two kinds of operators:

``define``
    kernel, vjp and jvp are given. Derivatives of any order follow from those of the operators in the
    formulas.
``define_fused``
    a kernel that computes in one sweep what a *composite* formula says in several operators, such as the vjp
    of the Cholesky factorisation. The first derivative of potrf always runs the fused kernel; its own
    derivatives are those of the composite.

Registered operators take tensors first, then flags, all positional and without defaults (the dispatcher would
drop arguments that equal their default before the Autograd kernel sees them), and all operands have equal
leading dimensions.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, is_grad_enabled
from torch.autograd.graph import increment_version
from torch.compiler import is_compiling

from lapgrad import _errors, _exceptions
from lapgrad._torch import define_public as _define_public
from lapgrad._torch import layout as _layout
from lapgrad._torch import private as _torch_private
from lapgrad._torch.precision import use_full_precision
from lapgrad._torch.private import skips_dispatcher

_LIBRARY = torch.library.Library("lapgrad", "DEF")

#: vjp(needs, saved, flags, *cotangents of the results) -> one gradient, or None, per operand.
Vjp = Callable[..., tuple[Tensor | None, ...]]
#: jvp(saved, flags, *tangents of the operands, None for a constant) -> tangent, or one per result.
Jvp = Callable[..., Any]
#: vmap(dispatched, batch_size, in_dims, arguments) -> the results, mapped dimension in front.
VmapRule = Callable[[Any, int, Sequence[int | None], Sequence[Any]], Any]


def apply_to_batch(
    dispatched: Any, batch_size: int, in_dims: Sequence[int | None], arguments: Sequence[Any]
) -> Any:
    """The vmap rule of almost every operator: the mapped dimension becomes one more leading dimension."""
    return dispatched(*_layout.batch_operands(batch_size, in_dims, arguments))


@dataclasses.dataclass(frozen=True, slots=True)
class Operator:
    """The functions by which an operator is called. Arguments are positional: operands, then flags.

    Attributes:
        call: Returns fresh results.
        overwrite: Leaves the result in the operand that the operator may overwrite, and returns that operand.
        consume: Like ``overwrite`` where that is possible, else like ``call``: for an operand that the caller
            does not use again.
        dispatched: The operator as registered with PyTorch.
    """

    call: Callable[..., Any]
    overwrite: Callable[..., Any]
    consume: Callable[..., Any]
    dispatched: Any


@dataclasses.dataclass(frozen=True)
class Overwriting:
    """How an operator reuses an operand.

    Attributes:
        operand: Position of the operand that receives the (first) result.
        argument: Its name in messages.
        kernel: Writes the result there; returns the further results, if there are any.
        operator: Name of the operator in messages; None: the registered name.
    """

    operand: int
    argument: str
    kernel: Callable[..., Any]
    operator: str | None = None


@dataclasses.dataclass(frozen=True)
class Formulas:
    """The derivatives of an operator.

    Attributes:
        saves: For each operand the slots its vjp reads. Slots count the operands first, then the results.
        vjp: See ``Vjp``; ``saved`` has one entry per slot in ascending order, None where no gradient asked
            needs it.
        jvp: See ``Jvp``; all slots are saved.
        constant_results: Positions of results without a derivative, such as a status.
    """

    saves: tuple[tuple[int, ...], ...]
    vjp: Vjp
    jvp: Jvp
    constant_results: tuple[int, ...] = ()

    def pull_back(
        self, needs: tuple[bool, ...], ctx: Any, cotangents: tuple[Tensor | None, ...]
    ) -> tuple[Tensor | None, ...]:
        """Return the vjp at the tensors saved in ``ctx``; Nones if no result has a cotangent."""
        if cotangents[0] is None and all(cotangent is None for cotangent in cotangents):
            return (None,) * len(needs)
        return self.vjp(needs, ctx.saved_tensors, ctx.flags, *cotangents)

    @property
    def slots(self) -> tuple[int, ...]:
        return tuple(sorted(set(itertools.chain(*self.saves))))

    def list_slots_by_need(self) -> dict[tuple[bool, ...], tuple[int | None, ...]]:
        """For each set of operands that need a gradient: the slots to save, None for those to leave out."""
        slots = self.slots
        return {
            needs: tuple(
                slot
                if any(need and slot in reads for need, reads in zip(needs, self.saves, strict=True))
                else None
                for slot in slots
            )
            for needs in itertools.product((False, True), repeat=len(self.saves))
        }


def define(
    name: str,
    schema: str,
    *,
    kernel: Callable[..., Any],
    fake: Callable[..., Any],
    formulas: Formulas,
    vmap: VmapRule = apply_to_batch,
    overwriting: Overwriting | None = None,
    shortcut: Callable[..., Any] | None = None,
    recorded: Callable[..., Any] | None = None,
) -> Operator:
    """Register an operator with explicit derivatives and return the functions to call it by.

    Args:
        name: The name under ``torch.ops.lapgrad``.
        schema: Arguments and results in PyTorch's schema language, without the name.
        kernel: Computes fresh, contiguous results that are not views.
        fake: The same for shapes, dtypes and devices only.
        formulas: The derivatives.
        vmap: The rule under torch.func.vmap.
        overwriting: The in-place variant, if there is one.
        shortcut: Computes a call of ordinary tensors without gradients in one step, or returns None.
        recorded: Computes a plain eager call that needs a gradient by functions of torch. torch then records
            their own gradients, which takes less time than a Python function where little is computed.
    """
    dispatched = _register(name, schema, kernel, fake, vmap)
    if not _torch_private.AVAILABLE:
        public = _define_public.attach(dispatched, formulas, vmap)
        return Operator(public, _make_copying_overwrite(public, formulas, overwriting), public, dispatched)

    apply = _make_recording_function(name, kernel, formulas)
    _LIBRARY.impl(name, _torch_private.make_autograd_kernel(dispatched, apply), "Autograd", with_keyset=True)
    operands = len(formulas.saves)
    record = recorded or functools.partial(apply, kernel)

    # Both functions do the same. The one without a loop over operands takes a tenth less time for a small
    # matrix.
    def call_on_one(operand: Tensor, *flags: Any) -> Any:
        if not skips_dispatcher((operand,)):
            return dispatched(operand, *flags)
        if operand.requires_grad and is_grad_enabled():
            return record(operand, *flags)
        return kernel(operand, *flags)

    def call_on_several(*arguments: Any) -> Any:
        tensors = arguments[:operands]
        if not skips_dispatcher(tensors):
            return dispatched(*arguments)
        if is_grad_enabled():
            for tensor in tensors:  # a generator takes twice as long
                if tensor.requires_grad:
                    return record(*arguments)
        return kernel(*arguments)

    call = _put_shortcut_before(shortcut, call_on_one if operands == 1 else call_on_several)
    if overwriting is None:
        return Operator(call, call, call, dispatched)
    several_results = schema.partition("->")[2].count("Tensor") > 1
    overwrite, consume = _make_overwriting_functions(name, call, formulas, overwriting, several_results)
    return Operator(call, overwrite, consume, dispatched)


def _put_shortcut_before(shortcut: Callable[..., Any] | None, call: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``call`` with the shortcut tried first, except while a call is traced."""
    if shortcut is None:
        return call

    def try_shortcut(*arguments: Any) -> Any:
        if not is_compiling():
            result = shortcut(*arguments)
            if result is not None:
                return result
        return call(*arguments)

    return try_shortcut


def define_fused(
    name: str,
    schema: str,
    *,
    kernel: Callable[..., Any],
    fake: Callable[..., Any],
    composite: Callable[..., Any],
    vmap: VmapRule = apply_to_batch,
    shortcut: Callable[..., Any] | None = None,
) -> Operator:
    """Register an operator with the derivatives of a composite formula; return the functions to call it by.

    Args:
        name: The name under ``torch.ops.lapgrad``.
        schema: Arguments and results in PyTorch's schema language, without the name.
        kernel: Computes fresh, contiguous results that are not views.
        fake: The same for shapes, dtypes and devices only.
        composite: The same function of the same arguments, in differentiable operators.
        vmap: The rule under torch.func.vmap.
        shortcut: As for ``define``.
    """
    dispatched = _register(name, schema, kernel, fake, vmap)
    if not _torch_private.AVAILABLE:
        return Operator(composite, composite, composite, dispatched)

    def forward(ctx: Any, compute: Callable[..., Any], *arguments: Any) -> Any:
        ctx.arguments = [None if isinstance(argument, Tensor) else argument for argument in arguments]
        ctx.positions = [i for i, argument in enumerate(arguments) if isinstance(argument, Tensor)]
        ctx.save_for_backward(*[arguments[i] for i in ctx.positions])
        return compute(*arguments)

    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        arguments = list(ctx.arguments)
        for position, tensor in zip(ctx.positions, ctx.saved_tensors, strict=True):
            arguments[position] = tensor
        return (None, *_compute_composite_vjp(composite, arguments, ctx.needs_input_grad[1:], cotangents))

    apply = _torch_private.make_single_level_function(name, forward=forward, backward=backward)
    # A Function that has a backward but no jvp refuses tangents, so calls with tangents run the composite.
    autograd = _torch_private.make_autograd_kernel(dispatched, apply, instead=composite)
    _LIBRARY.impl(name, autograd, "Autograd", with_keyset=True)

    operands = schema.partition("->")[0].count("Tensor")

    def call(*arguments: Any) -> Any:
        if is_grad_enabled() or not skips_dispatcher(arguments[:operands]):
            return dispatched(*arguments)
        return kernel(*arguments)

    call = _put_shortcut_before(shortcut, call)
    return Operator(call, call, call, dispatched)


def _make_recording_function(name: str, kernel: Callable[..., Any], formulas: Formulas) -> Callable[..., Any]:
    """``apply(compute, *arguments)`` runs ``compute`` and records it for reverse and forward mode."""
    operands = len(formulas.saves)
    save, vjp, jvp = _make_saving_function(formulas), formulas.vjp, formulas.jvp

    def forward(ctx: Any, compute: Callable[..., Any], *arguments: Any) -> Any:
        result = compute(*arguments)
        needs = ctx.needs_input_grad[1 : 1 + operands]
        # The plain eager path calls the kernel itself, and has no tangents.
        forward_mode = compute is not kernel
        save(ctx, needs, arguments, result, forward_mode)
        is_of_nothing = forward_mode and _layout.are_empty(arguments[:operands])
        ctx.results_of_nothing = _layout.detach_results(result) if is_of_nothing else None
        return result

    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        needs, flags = ctx.needs_input_grad[1 : 1 + operands], ctx.flags
        # What `pull_back` does, without its call: of one small matrix that would be one per cent.
        if cotangents[0] is None and all(cotangent is None for cotangent in cotangents):
            gradients: tuple[Tensor | None, ...] = (None,) * operands
        else:
            gradients = vjp(needs, ctx.saved_tensors, flags, *cotangents)
        return (None, *gradients, *(None,) * len(flags))

    def push_forward(ctx: Any, _: None, *tangents: Any) -> Any:
        if ctx.results_of_nothing is not None:
            # torch's legacy vmap, which its Jacobians use, refuses operators of ours on a batch of size 0.
            return _layout.make_zero_tangents(ctx.results_of_nothing, formulas.constant_results)
        return _torch_private.run_in_forward_mode(jvp, ctx.saved_tensors, ctx.flags, tangents[:operands])

    return _torch_private.make_single_level_function(
        name, forward=forward, backward=backward, jvp=push_forward
    )


def _make_saving_function(formulas: Formulas) -> Callable[..., None]:
    """The part of a Function's forward that saves what the formulas read, and no more."""
    operands, slots, constant_results = len(formulas.saves), formulas.slots, formulas.constant_results
    slots_by_need = formulas.list_slots_by_need()

    def save(
        ctx: Any, needs: tuple[bool, ...], arguments: tuple[Any, ...], result: Any, forward_mode: bool
    ) -> None:
        values = arguments[:operands]
        values += result if type(result) is tuple else (result,)
        ctx.save_for_backward(*[None if slot is None else values[slot] for slot in slots_by_need[needs]])
        if forward_mode:
            ctx.save_for_forward(*[values[slot] for slot in slots])
        ctx.flags = arguments[operands:]
        ctx.set_materialize_grads(False)
        if constant_results:
            ctx.mark_non_differentiable(*[result[position] for position in constant_results])

    return save


def _make_overwriting_functions(
    name: str,
    call: Callable[..., Any],
    formulas: Formulas,
    overwriting: Overwriting,
    several_results: bool,
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """``overwrite`` and ``consume`` of an operator."""
    operands, position, write = len(formulas.saves), overwriting.operand, overwriting.kernel
    slots_by_need = formulas.list_slots_by_need()
    apply = _make_overwriting_function(name, formulas, overwriting)
    overwrite_by_copy = _make_copying_overwrite(call, formulas, overwriting)
    known_as = overwriting.operator or name

    def write_into_target(arguments: tuple[Any, ...]) -> Any:
        target = arguments[position]
        needs = tuple([tensor.requires_grad for tensor in arguments[:operands]])
        if is_grad_enabled() and True in needs:
            # A copy made here, and not inside the function, is recorded, so that second derivatives reach its
            # origin.
            copy = target.clone() if position in slots_by_need[needs] else None
            try:
                return apply(target, *arguments[:position], copy, *arguments[position + 1 :])
            except _exceptions.LapgradError:
                increment_version(target)  # a failed factorisation has written, too
                raise
        if not target.is_inference():
            increment_version(target)
        further = write(*arguments)
        return target if further is None else (target, *further)

    def overwrite(*arguments: Any) -> Any:
        tensors, target = arguments[:operands], arguments[position]
        if not skips_dispatcher(tensors):
            # Addresses are unknown here, but an operand that is passed twice can be recognised.
            apart = [t.clone() if t is target and i != position else t for i, t in enumerate(tensors)]
            return overwrite_by_copy(*apart, *arguments[operands:])
        if _torch_private.has_internal_overlap(target):
            raise _errors.overwritten_overlap(known_as, overwriting.argument, target)
        if is_grad_enabled() and target.requires_grad and _torch_private.is_leaf_or_view_of_one(target):
            raise _errors.overwritten_leaf(known_as, overwriting.argument)
        apart = [
            tensor.clone() if i != position and _layout.may_overlap(tensor, target) else tensor
            for i, tensor in enumerate(tensors)
        ]
        if several_results and _torch_private.is_view(target):
            # PyTorch does not record an in-place change of a view by a function with several results.
            return overwrite_by_copy(*apart, *arguments[operands:])
        return write_into_target((*apart, *arguments[operands:]))

    def consume(*arguments: Any) -> Any:
        return write_into_target(arguments) if skips_dispatcher(arguments[:operands]) else call(*arguments)

    return overwrite, call if position in formulas.slots else consume


def _make_overwriting_function(name: str, formulas: Formulas, overwriting: Overwriting) -> Callable[..., Any]:
    """``apply(target, *arguments)`` overwrites the target and records it for reverse mode.

    Among the arguments, the operand to overwrite is None, or a copy of it that the backward may read. The
    target itself comes first: when it is a view, PyTorch takes the gradient of the first tensor for that of
    the view.
    """
    operands, position, write = len(formulas.saves), overwriting.operand, overwriting.kernel
    save, pull_back = _make_saving_function(formulas), formulas.pull_back

    def replace_operand(arguments: Sequence[Any], operand: Any) -> tuple[Any, ...]:
        return (*arguments[:position], operand, *arguments[position + 1 :])

    def forward(ctx: Any, target: Tensor, *arguments: Any) -> Any:
        ctx.mark_dirty(target)
        further = write(*replace_operand(arguments, target))
        result = target if further is None else (target, *further)
        ctx.needs = ctx.needs_input_grad[1 : 1 + operands]
        ctx.copied = arguments[position] is not None
        ctx.target_is_view = _torch_private.is_view(target)
        if not ctx.copied:
            ctx.needs = replace_operand(ctx.needs, ctx.needs_input_grad[0])
        save(ctx, ctx.needs, arguments, result, False)
        return result

    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        gradients = pull_back(ctx.needs, ctx, cotangents)
        flags = (None,) * len(ctx.flags)
        if ctx.copied:
            # The gradient of the old value goes to its copy, so that of the target is zero. For a view it
            # must be an explicit zero: with None, PyTorch drops the gradient of the whole tensor that the
            # view is part of.
            cotangent = cotangents[0] if ctx.target_is_view else None
            return (None if cotangent is None else torch.zeros_like(cotangent), *gradients, *flags)
        return (gradients[position], *replace_operand(gradients, None), *flags)

    return _torch_private.make_single_level_function(name + "_", forward=forward, backward=backward)


def _compute_composite_vjp(
    composite: Callable[..., Any],
    arguments: Sequence[Any],
    needs: Sequence[bool],
    cotangents: tuple[Tensor, ...],
) -> list[Tensor | None]:
    """The vjp of ``composite``: a gradient for each argument that needs one."""
    varying = [position for position, need in enumerate(needs) if need]

    def call_composite(*values: Tensor) -> Any:
        complete = list(arguments)
        for position, value in zip(varying, values, strict=True):
            complete[position] = value
        return composite(*complete)

    # Saved tensors may be wrappers of a transform that is over: torch.func.vjp does not see through those,
    # any operation does.
    values = [arguments[position].view_as(arguments[position]) for position in varying]
    with use_full_precision(values[0]):
        pull_back = torch.func.vjp(call_composite, *values)[1]
        pulled_back = pull_back(cotangents if len(cotangents) > 1 else cotangents[0])
    gradients = dict(zip(varying, pulled_back, strict=True))
    return [gradients.get(position) for position in range(len(arguments))]


def _register(
    name: str, schema: str, kernel: Callable[..., Any], fake: Callable[..., Any], vmap: VmapRule
) -> Any:
    """Everything but autograd: schema, kernels, shapes and the vmap rule."""
    _LIBRARY.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))
    dispatched = getattr(torch.ops.lapgrad, name).default

    def rule(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, Any]:
        mapped = vmap(dispatched, info.batch_size, in_dims, arguments)
        return mapped, (0,) * len(mapped) if isinstance(mapped, tuple) else 0

    # The dispatcher calls kernels with the caller's gradient mode, but functions of PyTorch that kernels use
    # must not be recorded.
    without_recording = torch.no_grad()(kernel)
    for device in ("CPU", "CUDA"):
        _LIBRARY.impl(name, without_recording, device)
    _torch_private.register_fake(_LIBRARY, name, fake)
    names = [argument.split()[-1] for argument in schema.partition(")")[0].strip("(").split(",")]
    # This key serves all backends without a kernel of their own, among them sparse layouts on every device.
    _LIBRARY.impl(name, _layout.make_refusal_of_sparse(name, names), "CompositeExplicitAutograd")
    torch.library.register_vmap(f"lapgrad::{name}", rule, lib=_LIBRARY)
    return dispatched


def _make_copying_overwrite(
    call: Callable[..., Any], formulas: Formulas, overwriting: Overwriting | None
) -> Callable[..., Any]:
    """``overwrite`` where memory cannot be reused: compute a fresh result and copy it back."""
    if overwriting is None:
        return call
    position = overwriting.operand
    read_by_backward = position in formulas.slots

    def overwrite_by_copy(*arguments: Any) -> Any:
        target = arguments[position]
        if read_by_backward:
            arguments = (*arguments[:position], target.clone(), *arguments[position + 1 :])
        result = call(*arguments)
        if type(result) is tuple:
            return target.copy_(result[0]), *result[1:]
        return target.copy_(result)

    return overwrite_by_copy
