"""Layouts: any strides give the result of a contiguous operand, and nothing else is read or written.

What does not belong to an operand, the memory around it and the triangle that is not read, holds NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from device import DEVICE
from paths import PATHS, take_path
from samples import OPERATORS, OperatorCase, Sample, join_results
from sized import FLAGS, list_flag_choices, sample
from tolerances import assert_all_close, of_order
from torch import Tensor

import lapgrad

Layout = Callable[[Tensor], Tensor]

OF_MATRICES = [case for case in OPERATORS.values() if case.operands[0].isupper()]
OF_VECTORS = [case for case in OPERATORS.values() if not case.operands[0].isupper()]
OVERWRITING = [case for case in OPERATORS.values() if case.overwrites is not None and case.leaves_result]


def store_column_major(A: Tensor) -> Tensor:
    return A.mT.contiguous().mT


def store_padded(A: Tensor) -> Tensor:
    """Return A stored as a block inside of larger matrices."""
    *batch, m, n = A.shape
    return _fill_view(A, A.new_empty(*batch, m + 3, n + 5)[..., 1:-2, 2:-3])


def store_padded_column_major(A: Tensor) -> Tensor:
    return store_padded(A.mT).mT


def store_in_every_second_column(A: Tensor) -> Tensor:
    *batch, m, n = A.shape
    return _fill_view(A, A.new_empty(*batch, m, 2 * n)[..., 1::2])


def store_in_every_second_row(A: Tensor) -> Tensor:
    *batch, m, n = A.shape
    return _fill_view(A, A.new_empty(*batch, 2 * m, n)[..., ::2, :])


def store_batch_innermost(A: Tensor) -> Tensor:
    """Return A stored with the items of the batch interleaved: neighbours belong to different items."""
    return A.movedim(0, -1).contiguous().movedim(-1, 0)


def store_batch_in_between(A: Tensor) -> Tensor:
    """Return A stored as row 0 of all items, then row 1 of all items, and so on."""
    return A.movedim(0, -2).contiguous().movedim(-2, 0)


def store_batch_with_gaps(A: Tensor) -> Tensor:
    """Return A stored so that its leading dimensions cannot be merged into one."""
    first, second, *others = A.shape
    return _fill_view(A, A.new_empty(first, second + 2, *others)[:, 1:-1])


def store_batch_transposed(A: Tensor) -> Tensor:
    return A.transpose(0, 1).contiguous().transpose(0, 1)


def share_first_item(A: Tensor) -> Tensor:
    """Return the first item of A, repeated for the whole batch by a stride of 0."""
    return A[:1, :1].expand_as(A)


def share_some_items(A: Tensor) -> Tensor:
    return A[:, :1].expand_as(A)


MATRIX_LAYOUTS: tuple[Layout, ...] = (
    store_column_major,
    store_padded,
    store_padded_column_major,
    store_in_every_second_column,
    store_in_every_second_row,
)
BATCH_LAYOUTS: tuple[Layout, ...] = (
    store_batch_innermost,
    store_batch_in_between,
    store_batch_with_gaps,
    store_batch_transposed,
    share_first_item,
    share_some_items,
)


def _fill_view(A: Tensor, view: Tensor) -> Tensor:
    """Return ``view``, a view, with ``A`` copied into it and all else in its memory set to NaN."""
    _view_memory(view).fill_(torch.nan)
    return view.copy_(A)


def _view_memory(A: Tensor) -> Tensor:
    """Return all elements of the memory that ``A`` is part of, as a flat tensor."""
    return torch.tensor([], dtype=A.dtype, device=DEVICE).set_(A.untyped_storage())


def _copy_bits(A: Tensor) -> Tensor:
    """Return a copy of that memory as integers, so that NaN equals itself."""
    return _view_memory(A.detach()).view(torch.int64).clone()


def check_operands(case: OperatorCase, one: Sample, layouts: tuple[Layout, ...], units: float) -> None:
    """Each operand, and all of them, in each layout: result and gradients as for contiguous operands."""
    units *= case.condition(one.args[0].shape[-1])
    count = len(one.args)
    choices = {(position,) for position in range(count)} | {tuple(range(count))}
    for layout in layouts:
        for positions in choices:
            args = [layout(arg) if i in positions else arg for i, arg in enumerate(one.args)]
            before = [_copy_bits(arg) for arg in args]
            dense = [arg.clone(memory_format=torch.contiguous_format).requires_grad_() for arg in args]
            expected = join_results(case.reference(*dense, **one.kwargs))
            leaves = [arg.detach().requires_grad_() for arg in args]
            actual = join_results(case.fn(*leaves, **one.kwargs))
            assert_all_close(actual, expected, units)
            weights = torch.linspace(-1, 1, expected.numel(), dtype=expected.dtype, device=DEVICE).view(
                expected.shape
            )
            actual_gradients = torch.autograd.grad(actual, leaves, weights)
            assert_all_close(actual_gradients, torch.autograd.grad(expected, dense, weights), units)
            for arg, bits in zip(args, before, strict=True):
                assert torch.equal(_copy_bits(arg), bits), f"{layout.__name__}: an operand was modified"


@pytest.mark.parametrize("case", OF_MATRICES, ids=lambda case: case.name)
def test_small_matrices(case: OperatorCase) -> None:
    check_operands(case, case.small(), MATRIX_LAYOUTS, of_order(5))


@pytest.mark.parametrize("case", OF_MATRICES, ids=lambda case: case.name)
def test_batches(case: OperatorCase) -> None:
    check_operands(case, case.batched((2, 3)), MATRIX_LAYOUTS + BATCH_LAYOUTS, of_order(5))


@pytest.mark.parametrize("case", OF_VECTORS, ids=lambda case: case.name)
def test_vectors(case: OperatorCase) -> None:
    """Every second element, and the batch innermost."""
    layouts = (
        lambda v: _fill_view(v, v.new_empty(*v.shape[:-1], 2 * v.shape[-1])[..., ::2]),
        store_batch_innermost,
    )
    check_operands(case, case.batched((2,)), layouts, of_order(5))


@pytest.mark.parametrize("path", ["default", "BLAS product", "two threads inside"])
@pytest.mark.parametrize("name", FLAGS)
def test_all_flags_on_every_path(name: str, path: str) -> None:
    """At orders above a leaf, with other sides of other lengths, for operands of both orders of storage."""
    case = OPERATORS[name]
    with take_path(path):
        for flags in list_flag_choices(name):
            check_operands(case, sample(name, 40, flags, other=35), MATRIX_LAYOUTS, of_order(40))
            batch = sample(name, 4, flags, other=3, batch=(3, 3))
            check_operands(
                case,
                batch,
                (store_column_major, store_padded, store_batch_innermost, share_first_item),
                of_order(4),
            )


@pytest.mark.parametrize("name", ["trsm", "trmm", "gemm", "gemm2", "gemmt", "syrk", "copyltu"])
def test_operand_with_stride_zero_inside_the_matrix(name: str) -> None:
    """A row or a column that is repeated, where an operand may be singular."""
    case = OPERATORS[name]
    one = case.small()
    for position, kind in enumerate(case.kinds):
        if kind != "general":
            continue
        A = one.args[position]
        for repeated in (A[:1].expand_as(A), A[:, :1].expand_as(A), A[0, 0].expand_as(A)):
            args = [repeated if i == position else arg for i, arg in enumerate(one.args)]
            expected = case.reference(*[arg.clone() for arg in args], **one.kwargs)
            assert_all_close(case.fn(*args, **one.kwargs), expected)


@pytest.mark.cpu
def test_stride_past_32_bits(tmp_path: Path) -> None:
    """Rows are further apart than a 32-bit stride can tell, in a sparse file that takes few pages."""
    n, row_stride = 40, 2**31 + 8
    values = sample("potrf", n, {}).args[0]
    file = torch.UntypedStorage.from_file(str(tmp_path / "sparse"), shared=True, nbytes=n * row_stride * 8)
    A = (
        torch.empty(0, dtype=torch.float64, device=DEVICE)
        .set_(file, 0, (n, n), (row_stride, 1))
        .copy_(values)
    )
    with take_path("BLAS product"):
        for name in ("potrf", "syrk", "copyltu"):
            case = OPERATORS[name]
            assert_all_close(case.fn(A), case.reference(values), of_order(n))
        assert_all_close(lapgrad.trsm(A, values), OPERATORS["trsm"].reference(values, values), of_order(n))
        assert_all_close(lapgrad.potrf(A, overwrite=True), torch.linalg.cholesky(values), of_order(n))


def _read(A: Tensor, lower: bool) -> Tensor:
    """Return A with NaN in the triangle that must not be read."""
    hidden = torch.ones_like(A, dtype=torch.bool).triu(1)
    return A.masked_fill(hidden if lower else hidden.mT, torch.nan)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "name",
    [
        "potrf",
        "potrf_ex",
        "trsm",
        "trmm",
        "copyltu",
        "syevd",
        "potri",
        "linalg.cho_solve",
        "linalg.logdet_psd",
        "linalg.solve_psd",
        "linalg.inverse_psd",
        "fused.mvn_nll",
    ],
)
def test_other_triangle_is_not_read(name: str, path: str) -> None:
    """Neither operator nor backward reads it; the backward of a factor ignores that of the cotangent, too."""
    case = OPERATORS[name]
    with take_path(path):
        for n, batch in ((5, ()), (5, (17,)), (33, ()), (70, ()), (130, ())):
            units = of_order(n) * case.condition(n)
            for flags in list_flag_choices(name):
                one = sample(name, n, flags, batch=batch)
                A = _read(one.args[0], flags["lower"])
                leaves = [A.requires_grad_(), *[arg.requires_grad_() for arg in one.args[1:]]]
                clean = [arg.detach().clone().requires_grad_() for arg in one.args]
                actual, expected = (
                    join_results(case.fn(*leaves, **flags)),
                    join_results(case.reference(*clean, **flags)),
                )
                assert_all_close(actual, expected, units)
                weights = torch.linspace(-1, 1, expected.numel(), dtype=expected.dtype, device=DEVICE).view(
                    expected.shape
                )
                shown = _read(weights, flags["lower"]) if name in ("potrf", "potrf_ex") else weights
                actual_gradients = torch.autograd.grad(actual, leaves, shown)
                assert_all_close(actual_gradients, torch.autograd.grad(expected, clean, weights), units)


@pytest.mark.parametrize("path", PATHS)
def test_gemmt_backward_does_not_read_the_other_triangle(path: str) -> None:
    reference = OPERATORS["gemmt"].reference
    with take_path(path):
        for n, batch in ((5, ()), (5, (17,)), (70, ())):
            for flags in list_flag_choices("gemmt"):
                one = sample("gemmt", n, flags, batch=batch)
                leaves = [arg.requires_grad_() for arg in one.args]
                weights = (
                    torch.linspace(-1, 1, n * n, dtype=torch.float64, device=DEVICE)
                    .view(n, n)
                    .expand(*batch, n, n)
                )
                actual, expected = lapgrad.gemmt(*leaves, **flags), reference(*leaves, **flags)
                gradients = torch.autograd.grad(actual, leaves, _read(weights, flags["lower"]))
                assert_all_close(gradients, torch.autograd.grad(expected, leaves, weights), of_order(n))


@pytest.mark.parametrize("name", FLAGS)
@pytest.mark.parametrize("layout", [*MATRIX_LAYOUTS, *BATCH_LAYOUTS], ids=lambda layout: layout.__name__)
def test_cotangents(name: str, layout: Layout) -> None:
    """Autograd hands the same cotangent to several: any layout is taken, and it is never modified."""
    case = OPERATORS[name]
    for n, batch in ((5, (2, 3)), (40, (1, 2))):
        for flags in list_flag_choices(name):
            one = sample(name, n, flags, batch=batch)
            leaves = [arg.requires_grad_() for arg in one.args]
            results = (f(*leaves, **flags) for f in (case.fn, case.reference))
            actual, expected = (
                [result] if isinstance(result, Tensor) else list(result) for result in results
            )
            actual, expected = (
                [part for part in parts if part.requires_grad] for parts in (actual, expected)
            )
            if expected[0].dim() < 2 + len(batch):
                continue
            dense = [
                torch.linspace(-1, 1, part.numel(), dtype=part.dtype, device=DEVICE).view(part.shape)
                for part in expected
            ]
            cotangents = [layout(part) if part.dim() >= 2 + len(batch) else part for part in dense]
            before = [_copy_bits(cotangent) for cotangent in cotangents]
            gradients = torch.autograd.grad(actual, leaves, cotangents)
            for cotangent, bits in zip(cotangents, before, strict=True):
                assert torch.equal(_copy_bits(cotangent), bits), "the cotangent was modified"
            dense = [cotangent.contiguous() for cotangent in cotangents]
            wanted = torch.autograd.grad(expected, leaves, dense)
            assert_all_close(gradients, wanted, of_order(n) * case.condition(n))


@pytest.mark.parametrize("layout", [*MATRIX_LAYOUTS, *BATCH_LAYOUTS[:4]], ids=lambda layout: layout.__name__)
@pytest.mark.parametrize("case", OVERWRITING, ids=lambda case: case.name)
def test_overwrite_writes_only_its_own_elements(case: OperatorCase, layout: Layout) -> None:
    flags = list_flag_choices(case.name) if case.name in FLAGS else [{}, {"alpha": 2.0, "beta": -1.0}]
    for n in (5, 40):
        for one_flags in flags:
            one = _make_square_sample(case, n, one_flags)
            target = layout(one.args[case.overwrites])
            outside = _find_outside(target)
            expected = join_results(case.reference(*one.args, **one_flags))
            args = [target if i == case.overwrites else arg for i, arg in enumerate(one.args)]
            result = join_results(case.fn(*args, **one_flags, overwrite=True))
            assert result is target
            assert_all_close(target, expected, of_order(n))
            assert _view_memory(target)[outside].isnan().all(), "written outside of the operand"


def _make_square_sample(case: OperatorCase, n: int, flags: dict[str, Any]) -> Sample:
    if case.name in FLAGS:
        return sample(case.name, n, flags, batch=(2, 3))
    generator = torch.Generator().manual_seed(n)
    args = [
        torch.randn(2, 3, n, n, dtype=torch.float64, generator=generator).to(DEVICE) for _ in case.operands
    ]
    return Sample(tuple(args), flags, "")


def _find_outside(A: Tensor) -> Tensor:
    """Return a mask of the elements of the memory that do not belong to ``A``."""
    mark = torch.ones(_view_memory(A).shape, dtype=torch.bool, device=DEVICE)
    mark.as_strided(A.shape, A.stride(), A.storage_offset()).fill_(False)
    return mark
