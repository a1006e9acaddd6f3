"""numpy, with one wrong result on demand."""

import os

from numpy import *  # noqa: F403
from numpy import linalg  # noqa: F401
from numpy import swapaxes as _swapaxes


def swapaxes(A, i, j):
    wrong = 1e-3 if os.environ.get("FAKE_JAX") == "wrong" else 0.0
    return _swapaxes(A, i, j) + wrong
