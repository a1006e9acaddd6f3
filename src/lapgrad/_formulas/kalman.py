"""One step of the Kalman filter and its adjoint, in differentiable operations of plain PyTorch.

The kernels of ``kalman_nll`` in plain PyTorch use these functions, and so do its second derivatives. The
formulas are those of csrc/small/lane_kalman.h. The first dimension of every tensor counts the series; it is 1
where all series share an operand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Model(NamedTuple):
    """y (N, T, p); A, Q (N, T, n, n); B (N, T, p, n); R (N, T, p, p); c (N, T, n); m (N, n); P (N, n, n).

    N and T may be 1 in all but y: one for all series, one for all times. m may be (N, n, 1 + d): the mean,
    and d directions in which the prior is flat.
    """

    y: Tensor
    A: Tensor
    B: Tensor
    Q: Tensor
    R: Tensor
    m: Tensor
    P: Tensor
    c: Tensor

    def at(self, name: str, t: int) -> Tensor:
        """Return the operand ``name`` at time t, for all series."""
        value: Tensor = getattr(self, name)
        return value[:, t if value.shape[1] > 1 else 0]

    def get_first_moments(self) -> tuple[Tensor, Tensor]:
        """Columns of the first mean, (N, n, 1 + d), and the first covariance (N, n, n)."""
        return self.m if self.m.dim() == 3 else self.m[..., None], symmetrise(self.P)


OPERANDS = ("y", "A", "B", "Q", "R", "m", "P", "c")


class FilterStep(NamedTuple):
    """Results of one filter step that the adjoint reads; see ``observe`` for the letters."""

    seen: Tensor  # 1 where there is an observation, 0 where it is missing: (N, p)
    B: Tensor  # with rows of zeros for missing observations
    v: Tensor
    z: Tensor
    u: Tensor
    L: Tensor
    info: Tensor
    BP: Tensor
    K: Tensor
    J: Tensor
    m: Tensor
    P: Tensor


def symmetrise(A: Tensor) -> Tensor:
    """(A + A^T) / 2: symmetric to the last bit, and so is its gradient."""
    return 0.5 * (A + A.mT)


def observe(model: Model, t: int, m: Tensor, P: Tensor) -> FilterStep:
    """v = y - B m, S = B P B^T + R = L L^T, K = P B^T S^-1, z = L^-1 v, u = S^-1 v; the filtered moments.

    m (N, n, 1 + d), v, z and u (N, p, 1 + d) have one column for each flat direction; y counts in the first.
    A missing observation: a row of zeros in B, of the identity in R, and v = 0.
    """
    y = model.y[:, t]
    there = ~y.isnan()
    seen = there.to(y.dtype)
    B = seen[..., None] * model.at("B", t)
    R = seen[..., None] * seen[..., None, :] * symmetrise(model.at("R", t)) + torch.diag_embed(1 - seen)
    v = _pad_columns(torch.where(there, y, 0.0), m) - B @ m
    BP = B @ P
    L, info = torch.linalg.cholesky_ex(BP @ B.mT + R)
    Kt, z = _solve(L, BP), torch.linalg.solve_triangular(L, v, upper=False)
    u = torch.linalg.solve_triangular(L.mT, z, upper=True)
    J = torch.eye(m.shape[-2], dtype=y.dtype, device=y.device) - Kt.mT @ B
    filtered = J @ P @ J.mT + Kt.mT @ R @ Kt
    return FilterStep(seen, B, v, z, u, L, info, BP, Kt.mT, J, m + Kt.mT @ v, symmetrise(filtered))


def find_continuing_steps(y: Tensor) -> Tensor:
    """bool (N, T), True where some later step of the series has an observation."""
    there = (~y.isnan()).any(-1).to(torch.int64)
    return there.flip(1).cumsum(1).flip(1) > there


def predict(model: Model, t: int, seen: FilterStep, going_on: Tensor) -> tuple[Tensor, Tensor]:
    """m = A m + c, P = A P A^T + Q, of time t + 1.

    A series that has ended keeps its moments: they are not read, but must not overflow.
    """
    A = model.at("A", t)
    m = A @ seen.m + _pad_columns(model.at("c", t), seen.m)
    P = symmetrise(A @ seen.P @ A.mT + symmetrise(model.at("Q", t)))
    running = going_on[:, t]
    return torch.where(running[:, None, None], m, seen.m), torch.where(running[:, None, None], P, seen.P)


class FlatPrior(NamedTuple):
    """The term of the value for flat directions, from G = sum v^T u = [[g00, g^T], [g, H]] (de Jong).

    All have the dtype of the filter, except for the value, which has that of the computation.

    Attributes:
        value: (g00 - g^T H^-1 g + log det H) / 2, (N,).
        W: Twice its derivative by G: z z^T + [[0, 0], [0, H^-1]], z = [1, -H^-1 g].
        info: The first direction, from 1 on, that the data do not determine beyond rounding errors; 0: none.
    """

    value: Tensor
    W: Tensor
    info: Tensor


def integrate_out_flat(innovations: Sequence[Tensor], m: Tensor) -> FlatPrior:
    """Integrate over the coordinates of the flat directions.

    With Z the rows z = L^-1 v of all steps, G = Z^T Z. Where the data hardly determine the directions, the
    columns of Z are nearly dependent: rounding Z costs their condition number, but rounding H would cost its
    square. So H = R^T R comes from Z = Q R, in float64.

    Args:
        innovations: z of each step, (N, p, 1 + d).
        m: Columns of the first mean, (N, n, 1 + d).
    """
    Z = torch.cat([m.new_zeros(m.shape[0], 0, m.shape[-1]), *innovations], -2)
    Z = Z if Z.device.type == "mps" else Z.double()  # those have no float64
    data, flat = Z[..., :1], Z[..., 1:]
    directions = flat.shape[-1]
    if directions == 0:
        nothing = torch.zeros(Z.shape[0], dtype=torch.int32, device=Z.device)
        return FlatPrior(0.5 * data.square().sum((-2, -1)), torch.ones_like(m[:, :1, :1]), nothing)
    # Rows of zeros, so that there are as many as columns.
    flat, data = (
        torch.nn.functional.pad(part, (0, 0, 0, max(0, directions - Z.shape[-2]))) for part in (flat, data)
    )
    Q, R = torch.linalg.qr(flat)
    along = Q.mT @ data
    pivots = R.diagonal(dim1=-2, dim2=-1).abs()
    smallest = 8 * Z.shape[-1] * torch.finfo(m.dtype).eps * flat.square().sum(-2)
    vague = pivots.square() <= smallest
    info = torch.where(vague.any(-1), vague.to(torch.int32).argmax(-1).int() + 1, 0)
    value = 0.5 * (data - Q @ along).square().sum((-2, -1)) + pivots.log().sum(-1)
    best = -torch.linalg.solve_triangular(R, along, upper=True)
    z = torch.nn.functional.pad(best, (0, 0, 1, 0), value=1.0)
    identity = torch.eye(directions, dtype=R.dtype, device=R.device).expand(R.shape)
    inverse = torch.linalg.solve_triangular(R, identity, upper=True)
    W = z @ z.mT + torch.nn.functional.pad(inverse @ inverse.mT, (1, 0, 1, 0))
    return FlatPrior(value, W.to(m.dtype), info)


def compute_step_vjp(
    model: Model,
    t: int,
    m: Tensor,
    P: Tensor,
    seen: FilterStep,
    running: Tensor,
    gs: Tensor,
    W: Tensor,
    gm: Tensor,
    gP: Tensor,
) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """Return the gradients of the operands at t, and the cotangents gm, gP of the moments predicted for t.

    Arguments gm, gP are those of the moments predicted for t + 1:

    gA = gm m+^T + 2 gP A P+, gQ = gP, gc = gm, gm+ = A^T gm, gP+ = A^T gP A
    w = K^T gm+, gv = gs u W + w = gy, gS = (gs (S^-1 - u W u^T) - w u^T - u w^T) / 2
    gR = gS + K^T gP+ K, gB = 2 gS B P + u (P gm+)^T - 2 K^T gP+ P+ - gv m^T
    gm = gm+ - B^T gv, gP = (I - K B)^T gP+ (I - K B) + B^T gS B + sym(gm+ (B^T u)^T)

    Of gc and gy the first column counts. W is that of ``FlatPrior``, 1 without flat directions. ``running``
    is False for series without a later observation: their gm and gP are zero, and their A may be anything.
    """
    A, u, K = torch.where(running[:, None, None], model.at("A", t), 0.0), seen.u, seen.K
    gA = gm @ seen.m.mT + 2 * gP @ A @ seen.P
    filtered_gm, filtered_gP = A.mT @ gm, A.mT @ gP @ A
    w = K.mT @ filtered_gm
    weighted = gs[:, None, None] * (u @ W)
    gv = weighted + w
    identity = torch.eye(u.shape[-2], dtype=u.dtype, device=u.device)
    inverse = _solve(seen.L, identity.expand(seen.L.shape))
    gS = 0.5 * (gs[:, None, None] * inverse - weighted @ u.mT - w @ u.mT - u @ w.mT)
    KtgP = K.mT @ filtered_gP
    gR = _multiply_outer(seen.seen, seen.seen) * (gS + KtgP @ K)
    gB = 2 * (gS @ seen.BP - KtgP @ seen.P) + u @ (P @ filtered_gm).mT - gv @ m.mT
    Btu = seen.B.mT @ u
    gradients = {"y": gv[..., 0], "A": gA, "B": gB, "Q": gP, "R": gR, "c": gm[..., 0]}
    gP = seen.J.mT @ filtered_gP @ seen.J + seen.B.mT @ gS @ seen.B
    gP = gP + 0.5 * (filtered_gm @ Btu.mT + Btu @ filtered_gm.mT)
    return gradients, filtered_gm - seen.B.mT @ gv, 0.5 * (gP + gP.mT)


def compute_vjp(model: Model, gs: Tensor) -> dict[str, Tensor]:
    """Return the gradient of the sum of gs times the value of each series, in the shapes of the model."""
    series, times, _ = model.y.shape
    m, P = (X.expand(series, *X.shape[1:]) for X in model.get_first_moments())
    steps: list[tuple[Tensor, Tensor, FilterStep]] = []
    going_on = find_continuing_steps(model.y)
    for t in range(times):
        seen = observe(model, t, m, P)
        steps.append((m, P, seen))
        m, P = predict(model, t, seen, going_on)
    W = integrate_out_flat([seen.z for _, _, seen in steps], m).W
    gm, gP = torch.zeros_like(m), torch.zeros_like(P)
    found: dict[str, list[Tensor]] = {name: [] for name in ("y", "A", "B", "Q", "R", "c")}
    for t in reversed(range(times)):
        at, gm, gP = compute_step_vjp(model, t, *steps[t], going_on[:, t], gs, W, gm, gP)
        for name, gradient in at.items():
            found[name].append(gradient)
    result = {
        name: _collect_gradient(parts, getattr(model, name), series, times) for name, parts in found.items()
    }
    gm = gm if model.m.dim() == 3 else gm[..., 0]
    result["m"] = gm if model.m.shape[0] == series else gm.sum(0, keepdim=True)
    result["P"] = gP if model.P.shape[0] == series else gP.sum(0, keepdim=True)
    return result


def _collect_gradient(backwards: list[Tensor], like: Tensor, series: int, times: int) -> Tensor:
    """Stack the gradients of all times, given last one first; sum them for an operand that times share."""
    if not backwards:
        return torch.zeros_like(like)
    if like.shape[1] == times:
        gradient = torch.stack(backwards[::-1], 1)
    else:
        gradient = torch.stack(backwards, 0).sum(0)[:, None]
    return gradient if like.shape[0] == series else gradient.sum(0, keepdim=True)


def _solve(L: Tensor, X: Tensor) -> Tensor:
    """(L L^T)^-1 X. (torch.cholesky_solve has wrong tangents in its backward.)"""
    return torch.linalg.solve_triangular(L.mT, torch.linalg.solve_triangular(L, X, upper=False), upper=True)


def _multiply_outer(x: Tensor, y: Tensor) -> Tensor:
    return x[..., :, None] * y[..., None, :]


def _pad_columns(x: Tensor, like: Tensor) -> Tensor:
    """x (N, k) as the first of as many columns as ``like`` has; the others are zero."""
    return torch.nn.functional.pad(x[..., None], (0, like.shape[-1] - 1))
