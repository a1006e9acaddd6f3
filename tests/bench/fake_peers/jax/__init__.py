"""The part of JAX that the worker of a peer needs for syrk, gemm2 and trsm, on numpy, for tests without JAX.

Gradients come from complex steps, exact to rounding. FAKE_JAX says what goes wrong: a name, and the number of
calls after which it does.
"""

import os
import sys
import time
from types import SimpleNamespace

import numpy as np

from jax import numpy  # noqa: F401

__version__ = "0.0.fake"

config = SimpleNamespace(update=lambda name, value: None)
lax = SimpleNamespace(
    linalg=SimpleNamespace(triangular_solve=lambda L, B, left_side, lower: np.linalg.solve(L, B))
)

_trouble, _, _after = os.environ.get("FAKE_JAX", "").partition(":")
_calls = 0

print("a library that talks", flush=True)  # not to be taken for an answer
if _trouble == "does not load":
    raise RuntimeError("no such backend")
if _trouble == "dies on load":
    sys.stderr.write("out of luck\n")
    os._exit(7)


def devices():
    return [SimpleNamespace(platform="cpu")]


def jit(function):
    return function


def vjp(function, *inputs):
    def pull(cotangents):
        _maybe_fail()
        return tuple(_gradient(function, inputs, i, cotangents) for i in range(len(inputs)))

    return function(*inputs), pull


def _gradient(function, inputs, position, cotangents):
    x = inputs[position]
    gradient = np.zeros_like(x)
    for index in np.ndindex(x.shape):
        moved = [y.astype(complex) for y in inputs]
        moved[position][index] += 1e-30j
        gradient[index] = (function(*moved).imag / 1e-30 * cotangents).sum()
    return gradient


def block_until_ready(results):
    _maybe_fail()
    return results


def _maybe_fail():
    global _calls
    _calls += 1
    if not _trouble or _calls <= int(_after or 0):
        return
    if _trouble == "dies":
        os._exit(3)
    if _trouble == "hangs":
        time.sleep(60)
    if _trouble == "raises":
        raise ValueError("cannot do that")
