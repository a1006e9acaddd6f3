"""What TensorFlow offers: graphs of tf.function, not compiled further."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


class Library:
    """TensorFlow."""

    def __init__(self, device: str, threads: int) -> None:
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(1)
        tf.config.experimental.enable_tensor_float_32_execution(False)
        self.tf, self.version = tf, tf.__version__
        self.device = "cuda" if tf.config.list_physical_devices("GPU") else "cpu"

    def array(self, x: Any) -> Any:
        return self.tf.constant(x)

    def function(self, formula: Callable[..., Any], name: str) -> Callable[..., Any]:
        return self.tf.function(lambda *inputs: formula(self, *inputs))

    def graph(self, function: Callable[..., Any], inputs: Any) -> Any:
        with self.tf.GradientTape(persistent=True) as tape:
            for x in inputs:
                tape.watch(x)
            results = function(*inputs)
        return results, (tape, results, inputs)

    def backward(self, graph: Any, cotangents: Any) -> Callable[[], Any]:
        tape, results, inputs = graph
        targets, weights = _flat(results), _flat(cotangents)
        return lambda: tape.gradient(targets, list(inputs), output_gradients=weights)

    def step(self, function: Callable[..., Any], inputs: Any, cotangents: Any) -> Callable[[], Any]:
        def both(inputs: Any, cotangents: Any) -> Any:
            with self.tf.GradientTape() as tape:
                for x in inputs:
                    tape.watch(x)
                results = function(*inputs)
            return tape.gradient(_flat(results), list(inputs), output_gradients=_flat(cotangents))

        compiled = self.tf.function(both)
        return lambda: compiled(inputs, cotangents)

    def wait(self, results: Any) -> None:
        if self.device == "cuda":  # on the CPU calls return when they are done
            self.tf.test.experimental.sync_devices()

    # Linear algebra.

    def mT(self, A: Any) -> Any:  # noqa: N802
        return self.tf.linalg.matrix_transpose(A)

    def cholesky(self, A: Any) -> Any:
        return self.tf.linalg.cholesky(A)

    def solve_lower(self, L: Any, B: Any) -> Any:
        return self.tf.linalg.triangular_solve(L, B, lower=True)

    def cholesky_solve(self, L: Any, B: Any) -> Any:
        return self.tf.linalg.cholesky_solve(L, B)

    def eigh(self, A: Any) -> Any:
        return self.tf.linalg.eigh(A)

    def svd(self, A: Any) -> Any:
        S, left, right = self.tf.linalg.svd(A, full_matrices=False)
        return self.mT(left), S, self.mT(right)

    def svdvals(self, A: Any) -> Any:
        return self.tf.linalg.svd(A, compute_uv=False)

    def qr(self, A: Any) -> Any:
        return self.tf.linalg.qr(A, full_matrices=False)

    def lstsq(self, A: Any, B: Any) -> Any:
        return self.tf.linalg.lstsq(A, B, fast=False)

    def logabsdet(self, A: Any) -> Any:
        return self.tf.linalg.slogdet(A)[1]

    def det(self, A: Any) -> Any:
        return self.tf.linalg.det(A)

    def gesv(self, A: Any, B: Any) -> Any:
        return self.tf.linalg.solve(A, B)

    def inv(self, A: Any) -> Any:
        return self.tf.linalg.inv(A)

    # Triangles and diagonals.

    def tril(self, A: Any) -> Any:
        return self.tf.linalg.band_part(A, -1, 0)

    def below_diagonal(self, A: Any) -> Any:
        return self.tf.linalg.set_diag(self.tril(A), self.tf.zeros_like(self.diagonal(A)))

    def diagonal(self, A: Any) -> Any:
        return self.tf.linalg.diag_part(A)

    def diagonal_matrix(self, d: Any) -> Any:
        return self.tf.linalg.diag(d)

    def pack(self, A: Any) -> Any:
        n = A.shape[-1]
        rows, columns = np.tril_indices(n)
        flat = self.tf.reshape(A, [*A.shape[:-2], n * n])
        return self.tf.gather(flat, rows * n + columns, axis=-1)

    def unpack(self, v: Any, n: int) -> Any:
        # Entries above the diagonal are fetched from a zero behind the packed ones.
        places = np.full((n, n), n * (n + 1) // 2)
        places[np.tril_indices(n)] = np.arange(n * (n + 1) // 2)
        longer = self.tf.concat([v, self.tf.zeros_like(v[..., :1])], -1)
        return self.tf.reshape(self.tf.gather(longer, places.ravel(), axis=-1), [*v.shape[:-1], n, n])

    # Arithmetic.

    def identity(self, n: int, like: Any) -> Any:
        return self.tf.eye(n, batch_shape=list(like.shape[:-2]), dtype=like.dtype)

    def constant(self, x: Any, like: Any) -> Any:
        return self.tf.constant(np.asarray(x, like.dtype.as_numpy_dtype))

    def mean_of_rows(self, X: Any) -> Any:
        return self.tf.reduce_mean(X, -2, keepdims=True)

    def sum(self, x: Any) -> Any:
        return self.tf.reduce_sum(x, -1)

    def flip(self, x: Any) -> Any:
        return x[..., ::-1]

    def log(self, x: Any) -> Any:
        return self.tf.math.log(x)

    def sqrt(self, x: Any) -> Any:
        return self.tf.sqrt(x)

    def abs(self, x: Any) -> Any:
        return self.tf.abs(x)

    def expand(self, x: Any, batch: Any) -> Any:
        return self.tf.broadcast_to(x, [*batch, *x.shape])

    def over_steps(self, step: Callable[[Any, Any], Any], carry: Any, y: Any) -> Any:
        raise NotImplementedError("no loop over steps is written for TensorFlow")


def _flat(results: Any) -> Any:
    return list(results) if isinstance(results, (tuple, list)) else [results]
