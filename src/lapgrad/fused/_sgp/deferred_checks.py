"""What the evaluation of a sparse Gaussian process must know of its numbers on the way, asked or guessed.

On a CPU a look at a number costs nothing. A look at a GPU ends when all that was asked of it is done: then
the GPU waits for the host, and half of the time of an evaluation goes so. ``Guesses`` puts all looks off to
the end, where they are one, and takes for granted until then that nothing fails, and that what was right the
last time is right again. In the course of a fit it nearly always is; else the evaluation is repeated with
``Looks``.

Who records an evaluation in a CUDA graph looks after each replay: ``left_open`` hands him what was guessed.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import torch
from torch import Tensor

from lapgrad import _errors
from lapgrad.fused._sgp import statistics as _inducing

#: Of the bound of rounding errors, in units of the criterion: beyond it chunks are solved for.
IMPRECISE = 1e-6

#: Per thread, what was right last time.
_last = threading.local()
#: Per thread, where guesses go that somebody else will look at.
_open = threading.local()


@contextlib.contextmanager
def left_open() -> Iterator[list[Guesses]]:
    """Evaluations on a GPU within do not look at what they have guessed; it is in the list in the end."""
    before: list[Guesses] | None = getattr(_open, "guesses", None)
    guesses: list[Guesses] = []
    _open.guesses = guesses
    try:
        yield guesses
    finally:
        _open.guesses = before


class Looks:
    """Asks at once, and raises at once."""

    #: Where ``potrf`` is to leave its status: nowhere, it raises.
    info_of_factor: Tensor | None = None
    info_of_sums: Tensor | None = None
    #: Whether ``solves`` is known to say no; else an inverse of K_uu might not do.
    products_are_precise = False

    def __init__(self, operator: str, jitter: float) -> None:
        self.operator, self.jitter = operator, jitter

    def check(self, value: Tensor) -> None:
        """Raises if the criterion is not finite."""
        if not value.isfinite():
            raise _not_finite(self.operator)

    def solves(self, imprecision: Tensor) -> bool:
        """Whether products are so imprecise that chunks are to be solved for."""
        return bool(imprecision > IMPRECISE)


class Guesses:
    """Answers at once, and looks later.

    Args:
        operator: The name in messages.
        jitter: For messages, too.
        like: Tells device and dtype.
        near: Whether points are as the kernel assumes, on the device; None: they are.
    """

    def __init__(self, operator: str, jitter: float, like: Tensor, near: Tensor | None) -> None:
        self.operator, self.jitter = operator, jitter
        self.imprecise: bool = getattr(_last, "imprecise", False)
        self.products_are_precise = not self.imprecise
        info = torch.zeros(2, dtype=torch.int32, device=like.device)
        self.info_of_factor, self.info_of_sums = info.unbind()
        self._near = torch.ones_like(info[0], dtype=torch.bool) if near is None else near
        self._finite, self._imprecision = torch.ones_like(self._near), like.new_zeros(())
        self._not_asked = True

    def check(self, value: Tensor) -> None:
        """Keeps whether the criterion is finite."""
        self._finite = value.isfinite()

    def solves(self, imprecision: Tensor) -> bool:
        """As last time."""
        self._imprecision, self._not_asked = imprecision, False
        return self.imprecise

    def leave_open(self) -> bool:
        """Whether somebody else will look.

        Raises:
            OptionError: Nobody does, and nobody can: a CUDA graph is being captured.
        """
        guesses: list[Guesses] | None = getattr(_open, "guesses", None)
        if guesses is not None:
            guesses.append(self)
            return True
        if self._imprecision.is_cuda and torch.cuda.is_current_stream_capturing():
            raise _errors.OptionError(
                f"{self.operator}: it must look at its results, and cannot be captured in a CUDA graph. "
                f"SparseGPRegression.fit uses one by itself."
            )
        return False

    def were_right(self) -> bool:
        """Looks, and raises what should have been raised on the way.

        If the points are not near, nothing else is said of them: the matrices may be wrong.
        """
        states = (self._near, self.info_of_factor, self.info_of_sums, self._finite, self._imprecision)
        numbers = torch.stack([state.to(self._imprecision.dtype) for state in states]).tolist()
        of_factor, of_sums = int(numbers[1]), int(numbers[2])
        if not numbers[0]:
            return False
        if of_factor:
            raise _inducing.not_factorised(self.operator, self.jitter, of_factor)
        if of_sums:
            raise sums_not_factorised(self.operator, of_sums)
        if not numbers[3]:
            raise _not_finite(self.operator)
        _last.imprecise = self.imprecise if self._not_asked else numbers[4] > IMPRECISE
        return bool(_last.imprecise == self.imprecise)


def sums_not_factorised(operator: str, code: int) -> _errors.LapgradError:
    """I + W / v has no Cholesky factor."""
    if code < 0:
        return _errors.NonFiniteError(
            f"{operator}: K_uf contains NaN or infinity. Check X and the parameters of the kernel.", (), -code
        )
    return _errors.NotPositiveDefiniteError(
        f"{operator}: I + W / noise_var is not positive definite up to rounding: noise_var is too small "
        f"beside the kernel.",
        (),
        code,
    )


def _not_finite(operator: str) -> _errors.NonFiniteError:
    return _errors.NonFiniteError(f"{operator}: the value is not finite: Y contains NaN or infinity.")
