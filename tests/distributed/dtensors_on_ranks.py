"""Checks of operators on ``DTensor``, sharded over several ranks; run by ``test_on_ranks.py``."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from samples import OPERATORS, OperatorCase
from tolerances import HIGHER_ORDER, assert_close
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.experimental import implicit_replication

import lapgrad
from lapgrad.distributed import Group, register_shardings

#: Dimensions of an operand of kalman_nll that has one item per series.
SERIES = {"y": 3, "A": 4, "B": 4, "Q": 4, "R": 4, "m": 2, "P": 3}
#: Items of a batch, as factors of one sample.
FACTORS = (1.0, 0.9, 1.1, 0.95, 1.05)


def make_batches(case: OperatorCase) -> list[tuple[list[Tensor], list[bool], dict[str, Any]]]:
    """Return operands with a batch in front, whether each of them has it, and flags."""
    found = []
    for one in case.samples():
        if case.name == "fused.kalman_nll":
            batched = [arg.dim() == SERIES[name] for arg, name in zip(one.args, case.operands, strict=True)]
            if batched[0] and one.args[0].shape[0] > 1:
                found.append((list(one.args), batched, one.kwargs))
        elif all(0 not in arg.shape and arg.dim() <= 2 for arg in one.args):
            args = [torch.stack([factor * arg for factor in FACTORS]) for arg in one.args]
            found.append((args, [True] * len(args), one.kwargs))
    return found[:1] + found[-1:]


def list_results(results: Any) -> list[Tensor]:
    return [results] if isinstance(results, Tensor) else list(results)


def differentiate(case: OperatorCase, args: list[Tensor], kwargs: dict[str, Any]) -> tuple[list[Tensor], Any]:
    results = list_results(case.fn(*args, **kwargs))
    floats = [part for part in results if part.is_floating_point() and part.requires_grad]
    total = sum((part * part).sum() for part in floats)
    return results, torch.autograd.grad(total, args, allow_unused=True)


def check_every_operator_on_sharded_batches(group: Group) -> None:
    register_shardings()
    mesh = init_device_mesh("cpu", (group.size,))
    faults = []
    for case in OPERATORS.values():
        batches = make_batches(case)
        assert batches, case.name
        for args, batched, flags in batches:
            # These create tensors, which DTensor treats as replicated only inside of this context.
            makes_tensors = case.name in ("linalg.lda", "pstrf") or "diffuse" in flags
            try:
                with implicit_replication() if makes_tensors else contextlib.nullcontext():
                    compare_with_plain(case, mesh, args, batched, flags)
            except Exception as error:
                faults.append(f"{case.name} {flags}: {type(error).__name__}: {str(error)[:300]}")
    assert not faults, "\n".join(faults)


def compare_with_plain(
    case: OperatorCase, mesh: DeviceMesh, args: list[Tensor], batched: list[bool], flags: dict[str, Any]
) -> None:
    """Raise if values or gradients of sharded operands are not those of plain ones, or are not sharded."""
    plain = [arg.detach().clone().requires_grad_() for arg in args]
    places = [Shard(0) if is_batched else Replicate() for is_batched in batched]
    sharded = [
        distribute_tensor(arg.detach(), mesh, [place]).requires_grad_()
        for arg, place in zip(args, places, strict=True)
    ]
    expected, expected_gradients = differentiate(case, plain, flags)
    found, gradients = differentiate(case, sharded, flags)
    for part, other in zip(found, expected, strict=True):
        assert isinstance(part, DTensor)
        assert part.placements == (Shard(0),), part.placements
        assert_close(part.detach().full_tensor(), other.detach(), HIGHER_ORDER)
    for place, part, other in zip(places, gradients, expected_gradients, strict=True):
        assert (part is None) == (other is None)
        if part is not None:
            assert part.placements == (place,) or place == Replicate(), part.placements
            assert_close(part.full_tensor(), other, HIGHER_ORDER)


def check_other_placements_are_gathered(group: Group) -> None:
    register_shardings()
    mesh = init_device_mesh("cpu", (group.size,))
    X = torch.randn(4, 5, 5, dtype=torch.float64)
    A = X @ X.mT + 5.0 * torch.eye(5, dtype=torch.float64)
    for placement in (Shard(1), Shard(2), Replicate()):
        L = lapgrad.potrf(distribute_tensor(A, mesh, [placement]))
        assert L.placements == (Replicate(),)
        assert_close(L.full_tensor(), lapgrad.potrf(A))
    pending = DTensor.from_local(A / group.size, mesh, [Partial()])
    assert_close(lapgrad.potrf(pending).full_tensor(), lapgrad.potrf(A))
    # Flags that change the shape of the result are not mixed up.
    B = distribute_tensor(X[:, :3], mesh, [Shard(0)])
    for transpose in (False, True, False):
        assert_close(
            lapgrad.syrk(B, transpose=transpose).full_tensor(), lapgrad.syrk(X[:, :3], transpose=transpose)
        )
