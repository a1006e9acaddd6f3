"""Kernel matrices block by block: one n×m buffer forward, none backward.

A kernel matrix is cheap to compute from the features of n and m points and a few scalars, so nothing of it is
kept for the backward pass. Forward, blocks of rows are computed directly into the result. Backward, each
block is computed once more and differentiated immediately. What autograd saves for one block fits into the
cache.

A symmetric matrix is computed in its lower triangle and mirrored, so that it is exactly symmetric. With
K(i, j) = K(j, i)ᵀ for blocks i > j, the cotangent of the computed block is gK(i, j) + gK(j, i)ᵀ. If the
caller is a factorisation, which reads one triangle only and has a symmetric cotangent, nothing is mirrored
and the cotangent is 2 gK(i, j).

A GPU that knows the formula of a kernel needs no blocks: it fills the whole matrix in one pass, and reads the
cotangent in another (``fused/_kernel_matrix.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from lapgrad._torch.layout import broadcast_shapes
from lapgrad.fused import _kernel_matrix
from lapgrad.fused._kernel_matrix import Formula

#: A tensor, or a tuple of trees.
Tree: TypeAlias = Any
#: matrix(scalars, features of the rows, features of the columns; None: those of the rows) -> (*batch, n, m)
Matrix = Callable[[Tree, Tree, Tree | None], Tensor]
#: express(scalars, features) -> the formula of ``matrix`` with these arguments
Express = Callable[[Tree, Tree], Formula | None]

#: Elements of a block: four megabytes (float64) on a CPU; more elsewhere, to keep a GPU busy.
_ELEMENTS = {"cpu": 1 << 19}
_ELEMENTS_ELSEWHERE = 1 << 23


def is_worthwhile(rows: int, columns: int) -> bool:
    """Return whether the matrix is larger than one block on a CPU."""
    return rows * columns > _ELEMENTS["cpu"]


def flatten_tree(tree: Tree) -> list[Tensor]:
    """Return the tensors of a tree, in order."""
    return [tree] if isinstance(tree, Tensor) else [tensor for part in tree for tensor in flatten_tree(part)]


def map_tree(function: Callable[[Tensor], Tensor], tree: Tree) -> Tree:
    """Return the tree with ``function`` applied to each tensor."""
    return function(tree) if isinstance(tree, Tensor) else tuple(map_tree(function, part) for part in tree)


def expand_scalar(scalar: Tensor, F: Tensor) -> Tensor:
    """Return a scalar, or scalars (*batch, 1, 1) of a batch of kernels, for all points of F: (*batch, n)."""
    return (scalar.squeeze(-1) if scalar.dim() else scalar).expand(F.shape[:-1])


def evaluate_in_blocks(
    matrix: Matrix,
    scalars: Tree,
    F: Tree,
    G: Tree | None,
    added_diagonal: Tensor | None = None,
    lower_only: bool = False,
    express: Express | None = None,
) -> Tensor:
    """Return ``matrix(scalars, F, G)``, with ``added_diagonal`` (a scalar, or (*batch, n)) on the diagonal.

    With ``lower_only``, blocks above the diagonal are left undefined, and backward assumes that its cotangent
    is symmetric. ``express`` gives the formula of the matrix, if the device of the points serves it.
    """
    arguments = _Arguments(
        get_structure(scalars),
        get_structure(F),
        None if G is None else get_structure(G),
        lower_only,
        express,
    )
    tensors = [*flatten_tree(scalars), *flatten_tree(F), *([] if G is None else flatten_tree(G))]
    if torch.is_grad_enabled() and any(t.requires_grad for t in (*tensors, added_diagonal) if t is not None):
        result: Tensor = _BlockedMatrix.apply(matrix, arguments, added_diagonal, *tensors)
        return result
    return _compute_matrix(matrix, (scalars, F, G), added_diagonal, arguments)


class _Arguments(NamedTuple):
    """The structure of the arguments of ``matrix``, trees with () in place of tensors, and options."""

    scalars: Tree
    F: Tree
    G: Tree | None
    lower_only: bool
    express: Express | None

    def group(self, values: Sequence[Any]) -> tuple[Tree, Tree, Tree | None]:
        remaining = iter(values)
        scalars, F = fill_structure(self.scalars, remaining), fill_structure(self.F, remaining)
        return scalars, F, None if self.G is None else fill_structure(self.G, remaining)


def get_structure(tree: Tree) -> Tree:
    """Return the tree with () in place of tensors."""
    return () if isinstance(tree, Tensor) else [get_structure(part) for part in tree]


def fill_structure(shape: Tree, values: Iterator[Any]) -> Tree:
    """Return the tree of this structure, with values in place of ()."""
    return next(values) if shape == () else tuple(fill_structure(part, values) for part in shape)


class _BlockedMatrix(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, matrix: Matrix, arguments: _Arguments, added_diagonal: Tensor | None, *tensors: Tensor
    ) -> Tensor:
        ctx.matrix, ctx.arguments = matrix, arguments
        ctx.diagonal_shape = None if added_diagonal is None else added_diagonal.shape
        ctx.save_for_backward(*tensors)
        return _compute_matrix(matrix, arguments.group(tensors), added_diagonal, arguments)

    @staticmethod
    def backward(ctx: Any, gK: Tensor) -> Any:
        tensors, needs = ctx.saved_tensors, ctx.needs_input_grad
        g_diagonal = None
        if needs[2]:
            g_diagonal = gK.diagonal(dim1=-2, dim2=-1).sum_to_size(ctx.diagonal_shape)
        # With gradients enabled, the caller wants to differentiate this backward.
        compute = _compute_differentiable_gradients if torch.is_grad_enabled() else _compute_gradients
        if ctx.arguments.express is not None and not torch.is_grad_enabled():
            compute = _compute_gradients_by_formula
        gradients = compute(ctx.matrix, ctx.arguments, tensors, needs[3:], gK)
        return (None, None, g_diagonal, *gradients)


def _iterate_row_blocks(F: Sequence[Tensor], columns: int) -> Iterator[slice]:
    rows, batch = F[0].shape[-2], max(f.shape[:-2].numel() for f in F)
    elements = _ELEMENTS.get(F[0].device.type, _ELEMENTS_ELSEWHERE)
    size = max(1, min(rows, elements // max(1, columns * batch)))
    return (slice(start, min(start + size, rows)) for start in range(0, rows, size))


def _take_rows(tree: Tree, rows: slice) -> Tree:
    return map_tree(lambda f: f[..., rows, :], tree)


def _compute_matrix(
    matrix: Matrix,
    tensors: tuple[Tree, Tree, Tree | None],
    added_diagonal: Tensor | None,
    arguments: _Arguments,
) -> Tensor:
    scalars, F, G = tensors
    if arguments.express is not None:
        return _compute_matrix_by_formula(arguments.express, tensors, added_diagonal, arguments.lower_only)
    lower_only = arguments.lower_only
    with torch.no_grad():
        of_rows, of_columns = flatten_tree(F), flatten_tree(F if G is None else G)
        n, m = of_rows[0].shape[-2], of_columns[0].shape[-2]
        batch = broadcast_shapes(*(f.shape[:-2] for f in (*of_rows, *of_columns)))
        K = of_rows[0].new_empty((*batch, n, m))
        for rows in _iterate_row_blocks(of_rows, m):
            here = _take_rows(F, rows)
            if G is not None:
                K[..., rows, :] = matrix(scalars, here, G)
                continue
            K[..., rows, rows] = matrix(scalars, here, None)
            if rows.start:
                left = matrix(scalars, here, _take_rows(F, slice(rows.start)))
                K[..., rows, : rows.start] = left
                if not lower_only:
                    K[..., : rows.start, rows] = left.mT
        if added_diagonal is not None:
            K.diagonal(dim1=-2, dim2=-1).add_(added_diagonal)
    return K


def _express(express: Express, scalars: Tree, F: Tree) -> tuple[Formula, Tensor]:
    """Return the formula, and its features as one matrix."""
    formula = express(scalars, F)
    assert formula is not None
    return formula, formula.join_features(flatten_tree(F)[0].shape[-2])


def _compute_matrix_by_formula(
    express: Express,
    tensors: tuple[Tree, Tree, Tree | None],
    added_diagonal: Tensor | None,
    lower_only: bool,
) -> Tensor:
    scalars, F, G = tensors
    formula, rows = _express(express, scalars, F)
    columns = None if G is None else _express(express, scalars, G)[1]
    noise = None if added_diagonal is None else added_diagonal.detach().to(rows)
    if noise is not None and noise.dim():
        noise = noise.expand(len(rows))
    return _kernel_matrix.fill_matrix(
        formula.text, formula.join_scalars(), rows, columns, noise=noise, lower_only=lower_only
    )


def _compute_gradients_by_formula(
    matrix: Matrix, arguments: _Arguments, tensors: Sequence[Tensor], needs: Sequence[bool], gK: Tensor
) -> list[Tensor | None]:
    """Return the gradients of all tensors: of scalars and rows in one pass over gK, of columns in another."""
    assert arguments.express is not None
    scalars, F, G = arguments.group(tensors)
    formula, rows = _express(arguments.express, scalars, F)
    joined = formula.join_scalars()
    # Each tensor may occur in the formula once, or not at all (such as the points of a constant).
    found: dict[int, Tensor] = {}
    columns = None
    if G is not None:
        of_columns, columns = _express(arguments.express, scalars, G)
        if any(need for f, need in zip(tensors, needs, strict=True) if any(f is g for g in flatten_tree(G))):
            both = _kernel_matrix.differentiate_matrix(formula.text, joined, columns, rows, gK.mT)
            gradients = of_columns.split_gradients(*both)
            _gather_gradients(found, of_columns.features, gradients[len(of_columns.scalars) :])
    both = _kernel_matrix.differentiate_matrix(
        formula.text, joined, rows, columns, gK, is_symmetric=arguments.lower_only and G is None
    )
    _gather_gradients(found, formula.tensors, formula.split_gradients(*both))
    return [
        found.get(id(tensor), torch.zeros_like(tensor)) if need else None
        for tensor, need in zip(tensors, needs, strict=True)
    ]


def _gather_gradients(
    found: dict[int, Tensor], tensors: Sequence[Tensor], gradients: Sequence[Tensor]
) -> None:
    """Add the gradients of some tensors to those found before."""
    for tensor, gradient in zip(tensors, gradients, strict=True):
        found[id(tensor)] = found[id(tensor)] + gradient if id(tensor) in found else gradient


def _compute_differentiable_gradients(
    matrix: Matrix, arguments: _Arguments, tensors: Sequence[Tensor], needs: Sequence[bool], gK: Tensor
) -> list[Tensor | None]:
    """Return gradients that can be differentiated again; they are not computed in blocks."""
    wanted = [tensor for tensor, need in zip(tensors, needs, strict=True) if need]
    if not wanted:
        return [None] * len(tensors)
    K = matrix(*arguments.group(tensors))
    found = iter(torch.autograd.grad(K, wanted, gK, create_graph=True, allow_unused=True))
    return [next(found) if need else None for need in needs]


def _compute_gradients(
    matrix: Matrix, arguments: _Arguments, tensors: Sequence[Tensor], needs: Sequence[bool], gK: Tensor
) -> list[Tensor | None]:
    totals = [torch.zeros_like(tensor) if need else None for tensor, need in zip(tensors, needs, strict=True)]
    if not any(needs):
        return totals
    leaves = [tensor.detach().requires_grad_(need) for tensor, need in zip(tensors, needs, strict=True)]
    scalars, F, G = arguments.group(leaves)
    pairs = [(leaf, total) for leaf, total in zip(leaves, totals, strict=True) if total is not None]
    # Rows of F are separate leaves: a gradient of all of F for each block would be mostly zeros.
    total_of = {id(leaf): total for leaf, total in pairs}
    apart = [pair for pair in pairs if not any(pair[0] is f for f in flatten_tree(F))]

    def cut_rows(rows: slice) -> tuple[Tree, list[tuple[Tensor, Tensor]]]:
        found: list[tuple[Tensor, Tensor]] = []

        def make_leaf(f: Tensor) -> Tensor:
            part = f.detach()[..., rows, :].requires_grad_(f.requires_grad)
            if f.requires_grad:
                found.append((part, total_of[id(f)][..., rows, :]))
            return part

        return map_tree(make_leaf, F), found

    for rows in _iterate_row_blocks(flatten_tree(F), gK.shape[-1]):
        here, of_rows = cut_rows(rows)
        with torch.enable_grad():
            if G is not None:
                _accumulate_gradients(matrix(scalars, here, G), gK[..., rows, :], apart + of_rows)
                continue
            _accumulate_gradients(matrix(scalars, here, None), gK[..., rows, rows], apart + of_rows)
            if rows.start:
                before, of_before = cut_rows(slice(rows.start))
                g, weight = gK[..., rows, : rows.start], 2.0
                if not arguments.lower_only:
                    g, weight = g + gK[..., : rows.start, rows].mT, 1.0
                _accumulate_gradients(matrix(scalars, here, before), g, apart + of_rows + of_before, weight)
    return totals


def _accumulate_gradients(
    block: Tensor, g: Tensor, pairs: Sequence[tuple[Tensor, Tensor]], weight: float = 1.0
) -> None:
    """Add ``weight`` times the gradients of <block, g> with respect to the leaves to their totals."""
    if not block.requires_grad:
        return
    gradients = torch.autograd.grad(block, [leaf for leaf, _ in pairs], g, allow_unused=True)
    for (_, total), gradient in zip(pairs, gradients, strict=True):
        if gradient is not None:
            total.add_(gradient, alpha=weight)
