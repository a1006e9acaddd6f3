"""What MXNet 1.9 offers: the operators of mx.nd.linalg, which have lapgrad's names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_OPERATORS = (
    "potrf potri trsm trmm syrk gemm2 gemm gelqf syevd sumlogdiag extractdiag makediag extracttrian "
    "maketrian inverse det slogdet"
)


class Library:
    """MXNet."""

    def __init__(self, device: str, threads: int) -> None:
        import mxnet

        self.mx, self.version = mxnet, mxnet.__version__
        self.device = "cuda" if device == "cuda" and mxnet.context.num_gpus() else "cpu"

    def array(self, x: Any) -> Any:
        where = self.mx.gpu() if self.device == "cuda" else self.mx.cpu()
        return self.mx.nd.array(x, dtype=x.dtype, ctx=where)

    def function(self, formula: Callable[..., Any], name: str) -> Callable[..., Any]:
        if name not in _OPERATORS.split():
            raise NotImplementedError("MXNet has no such operator")
        operator = getattr(self.mx.nd.linalg, name)
        if name == "slogdet":
            return lambda A: operator(A)[1]
        return operator

    def graph(self, function: Callable[..., Any], inputs: Any) -> Any:
        for x in inputs:
            x.attach_grad()
        with self.mx.autograd.record():
            results = function(*inputs)
        return results, (results, inputs)

    def backward(self, graph: Any, cotangents: Any) -> Callable[[], Any]:
        results, inputs = graph
        return lambda: self._gradients(results, inputs, cotangents, keep=True)

    def step(self, function: Callable[..., Any], inputs: Any, cotangents: Any) -> Callable[[], Any]:
        def both() -> Any:
            with self.mx.autograd.record():
                results = function(*inputs)
            return self._gradients(results, inputs, cotangents, keep=False)

        return both

    def _gradients(self, results: Any, inputs: Any, cotangents: Any, keep: bool) -> Any:
        return self.mx.autograd.grad(_flat(results), list(inputs), _flat(cotangents), retain_graph=keep)

    def wait(self, results: Any) -> None:
        self.mx.nd.waitall()


def _flat(results: Any) -> Any:
    return list(results) if isinstance(results, (tuple, list)) else [results]
