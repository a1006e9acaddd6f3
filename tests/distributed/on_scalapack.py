"""Started by ``mpiexec``: compares everything on a grid of processes with one process. Prints what differs.

usage: mpiexec -n 4 python on_scalapack.py 2x2 --n 2000 --block 64
"""

from __future__ import annotations

import argparse
import os

import torch

import lapgrad
from lapgrad.distributed import BlockCyclicMatrix, ProcessGrid, make_grid, mvn_nll, potrf, potri, trsm
from lapgrad.models.kernels import RBF, Matern32


def compare_operators(grid: ProcessGrid, n: int, dtype: torch.dtype) -> dict[str, float]:
    """Return the largest deviation of operators and their gradients, relative to the largest entry."""
    factor = torch.randn(n, n, dtype=dtype)
    A = factor @ factor.mT / n + torch.eye(n, dtype=dtype)
    B, G = torch.randn(n, 17, dtype=dtype), torch.randn(n, 17, dtype=dtype)
    H = torch.randn(n, n, dtype=dtype)
    leaves = [A.clone().requires_grad_(), B.clone().requires_grad_()]
    L = potrf(BlockCyclicMatrix.from_dense(leaves[0], grid))
    right = BlockCyclicMatrix.from_dense(leaves[1], grid)
    solved = trsm(L, trsm(L, right), transpose=True).to_dense()
    sideways = BlockCyclicMatrix.from_dense(leaves[1].mT.contiguous(), grid)
    other = trsm(L, trsm(L, sideways, rightside=True, transpose=True), rightside=True).to_dense()
    inverse = potri(L).to_dense()
    loss = (solved * G).sum() + (other.mT * G).sum() + (inverse * H).sum()
    found = {"factor": L.to_dense(), "solved": solved, "other": other, "inverse": inverse}
    found |= dict(zip(("gA", "gB"), torch.autograd.grad(loss, leaves), strict=True))
    leaves = [A.clone().requires_grad_(), B.clone().requires_grad_()]
    factor = lapgrad.potrf(leaves[0])
    solved = lapgrad.trsm(factor, lapgrad.trsm(factor, leaves[1]), transpose=True)
    inverse = lapgrad.potri(factor)
    loss = 2.0 * (solved * G).sum() + (inverse * H).sum()
    wanted = {"factor": factor, "solved": solved, "other": solved.mT, "inverse": inverse}
    wanted |= dict(zip(("gA", "gB"), torch.autograd.grad(loss, leaves), strict=True))
    return {name: compare(found[name], wanted[name]) for name in wanted}


def compare_criterion(grid: ProcessGrid, n: int, dtype: torch.dtype) -> dict[str, float]:
    """Return the deviation of the criterion and its gradients."""
    X, Y = torch.rand(n, 3, dtype=dtype), torch.randn(n, 2, dtype=dtype)
    results = []
    for on_grid in (True, False):
        kernel = (RBF(lengthscale=[0.4, 0.5, 0.6]) + Matern32(lengthscale=0.3, variance=0.5)).to(dtype)
        points, noise = X.clone().requires_grad_(), torch.tensor(0.2, dtype=dtype, requires_grad=True)
        if on_grid:
            loss = mvn_nll(kernel, points, Y, noise, grid=grid)
        else:
            loss = lapgrad.fused.mvn_nll(kernel(points) + noise * torch.eye(n, dtype=dtype), Y)
        leaves = {"gX": points, "g noise": noise, **dict(kernel.named_parameters())}
        gradients = torch.autograd.grad(loss, list(leaves.values()))
        results.append({"loss": loss, **dict(zip(leaves, gradients, strict=True))})
    return {name: compare(value, results[1][name]) for name, value in results[0].items()}


def compare_failures(grid: ProcessGrid, n: int) -> dict[str, float]:
    """Return 0 if errors name what they should on this process."""
    X = torch.linspace(0, 1, n, dtype=torch.float64)[:, None]
    noise = torch.ones(n, dtype=torch.float64)
    noise[n // 2] = -3.0
    try:
        mvn_nll(RBF().double(), X, X, noise, grid=grid)
    except lapgrad.NotPositiveDefiniteError as error:
        return {"minor": float(error.minor != n // 2 + 1)}
    return {"minor": 1.0}


def compare(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found - wanted).abs().max() / wanted.abs().max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape")
    parser.add_argument("--n", type=int, default=200)
    parser.add_argument("--block", type=int, default=64)
    parser.add_argument("--dtype", default="float64")
    parser.add_argument("--parts", nargs="+", default=["operators", "criterion", "failures"])
    arguments = parser.parse_args()
    rows, columns = map(int, arguments.shape.split("x"))
    torch.manual_seed(0)
    dtype = getattr(torch, arguments.dtype)
    with make_grid((rows, columns), block=arguments.block, engine="scalapack") as grid:
        found: dict[str, float] = {}
        if "operators" in arguments.parts:
            found |= compare_operators(grid, arguments.n, dtype)
        if "criterion" in arguments.parts:
            found |= compare_criterion(grid, arguments.n, dtype)
        if "failures" in arguments.parts:
            found |= compare_failures(grid, arguments.n)
        lines = [
            f"{grid.rank} {name.replace(' ', '_')} {difference:.3e}\n" for name, difference in found.items()
        ]
        os.write(1, "".join(lines).encode())  # at once, so that lines of several processes do not mix


if __name__ == "__main__":
    main()
