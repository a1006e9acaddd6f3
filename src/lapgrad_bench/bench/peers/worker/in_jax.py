"""What JAX offers: everything compiled by jax.jit, 64-bit types on, products in full precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


class Library:
    """JAX."""

    def __init__(self, device: str, threads: int) -> None:
        import jax

        jax.config.update("jax_enable_x64", True)
        jax.config.update("jax_default_matmul_precision", "highest")
        self.jax, self.np, self.version = jax, jax.numpy, jax.__version__
        self.device = "cpu" if jax.devices()[0].platform == "cpu" else "cuda"

    def array(self, x: Any) -> Any:
        return self.np.asarray(x)

    def function(self, formula: Callable[..., Any], name: str) -> Callable[..., Any]:
        return self.jax.jit(lambda *inputs: formula(self, *inputs))

    def graph(self, function: Callable[..., Any], inputs: Any) -> Any:
        return self.jax.vjp(function, *inputs)

    def backward(self, graph: Any, cotangents: Any) -> Callable[[], Any]:
        pull = self.jax.jit(lambda graph, cotangents: graph(cotangents))
        return lambda: pull(graph, cotangents)

    def step(self, function: Callable[..., Any], inputs: Any, cotangents: Any) -> Callable[[], Any]:
        both = self.jax.jit(lambda inputs, cotangents: self.jax.vjp(function, *inputs)[1](cotangents))
        return lambda: both(inputs, cotangents)

    def wait(self, results: Any) -> None:
        self.jax.block_until_ready(results)

    # Linear algebra.

    def mT(self, A: Any) -> Any:  # noqa: N802
        return self.np.swapaxes(A, -1, -2)

    def cholesky(self, A: Any) -> Any:
        return self.np.linalg.cholesky(A)

    def solve_lower(self, L: Any, B: Any) -> Any:
        return self.jax.lax.linalg.triangular_solve(L, B, left_side=True, lower=True)

    def cholesky_solve(self, L: Any, B: Any) -> Any:
        half = self.solve_lower(L, B)
        return self.jax.lax.linalg.triangular_solve(L, half, left_side=True, lower=True, transpose_a=True)

    def eigh(self, A: Any) -> Any:
        return self.np.linalg.eigh(A)

    def svd(self, A: Any) -> Any:
        columns, S, V = self.np.linalg.svd(A, full_matrices=False)
        return self.mT(columns), S, V

    def svdvals(self, A: Any) -> Any:
        return self.np.linalg.svd(A, compute_uv=False)

    def qr(self, A: Any) -> Any:
        return self.np.linalg.qr(A)

    def lstsq(self, A: Any, B: Any) -> Any:
        if A.ndim > 2:
            raise NotImplementedError("jax.numpy.linalg.lstsq takes one matrix")
        return self.np.linalg.lstsq(A, B)[0]

    def logabsdet(self, A: Any) -> Any:
        return self.np.linalg.slogdet(A)[1]

    def det(self, A: Any) -> Any:
        return self.np.linalg.det(A)

    def gesv(self, A: Any, B: Any) -> Any:
        return self.np.linalg.solve(A, B)

    def inv(self, A: Any) -> Any:
        return self.np.linalg.inv(A)

    # Triangles and diagonals.

    def tril(self, A: Any) -> Any:
        return self.np.tril(A)

    def below_diagonal(self, A: Any) -> Any:
        return self.np.tril(A, -1)

    def diagonal(self, A: Any) -> Any:
        return self.np.diagonal(A, axis1=-2, axis2=-1)

    def diagonal_matrix(self, d: Any) -> Any:
        return d[..., None] * self.np.eye(d.shape[-1], dtype=d.dtype)

    def pack(self, A: Any) -> Any:
        rows, columns = np.tril_indices(A.shape[-1])
        return A[..., rows, columns]

    def unpack(self, v: Any, n: int) -> Any:
        rows, columns = np.tril_indices(n)
        return self.np.zeros((*v.shape[:-1], n, n), v.dtype).at[..., rows, columns].set(v)

    # Arithmetic.

    def identity(self, n: int, like: Any) -> Any:
        return self.np.broadcast_to(self.np.eye(n, dtype=like.dtype), (*like.shape[:-2], n, n))

    def constant(self, x: Any, like: Any) -> Any:
        return self.np.asarray(x, dtype=like.dtype)

    def mean_of_rows(self, X: Any) -> Any:
        return X.mean(-2, keepdims=True)

    def sum(self, x: Any) -> Any:
        return x.sum(-1)

    def flip(self, x: Any) -> Any:
        return x[..., ::-1]

    def log(self, x: Any) -> Any:
        return self.np.log(x)

    def sqrt(self, x: Any) -> Any:
        return self.np.sqrt(x)

    def abs(self, x: Any) -> Any:
        return self.np.abs(x)

    def expand(self, x: Any, batch: Any) -> Any:
        return self.np.broadcast_to(x, (*batch, *x.shape))

    def over_steps(self, step: Callable[[Any, Any], Any], carry: Any, y: Any) -> Any:
        """Carry a state through the steps of series y (*batch, steps, p)."""
        return self.jax.lax.scan(lambda c, y: (step(c, y), None), carry, self.np.moveaxis(y, -2, 0))[0]
