"""When one evaluation of the sparse GP bound reads numbers back from the device: at once, or once at the end.

On a CPU a number can be read at any time. On a GPU the host would have to wait until everything launched so
far has run, and then the GPU would wait for the host: that would take half of an evaluation. So on a GPU all
checks are deferred to the end, where one read serves all of them. Until then the evaluation assumes that
nothing fails, and that products are as precise as they were the last time. In the course of a fit that is
nearly always true. If it is not, the evaluation is repeated with what is known then.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from lapgrad import _exceptions
from lapgrad.fused._sgp import statistics as _statistics

#: The bound of rounding errors, in units of the criterion, above which each chunk is solved for.
IMPRECISE = 1e-6


class Checks(Protocol):
    """Numbers on a device that say whether an evaluation can be used."""

    def are_passed(self) -> bool:
        """Read the numbers. Raise if something failed; return False if the evaluation must be repeated."""


class Evaluation:
    """State that consecutive evaluations of one bound share.

    A caller that evaluates the same bound many times (a model) keeps one and passes it to every evaluation.
    Otherwise each evaluation gets a new one, so that its result does not depend on earlier calls.

    Attributes:
        is_imprecise: Whether products were too imprecise in the last evaluation; the next one then begins
            with solves.
        deferred: Inside ``defer_checks``, the checks of the evaluations so far; else None.
    """

    def __init__(self) -> None:
        self.is_imprecise = False
        self.deferred: list[Checks] | None = None

    @contextlib.contextmanager
    def defer_checks(self) -> Iterator[list[Checks]]:
        """Evaluations inside leave their checks to the caller, in the list that this yields.

        A CUDA graph is recorded this way: the caller reads the checks after each replay.
        """
        before, self.deferred = self.deferred, []
        try:
            yield self.deferred
        finally:
            self.deferred = before


class ImmediateChecks:
    """Checks that read each number at once, and raise.

    Args:
        operator: The name in messages.
        jitter: For messages, too.
        is_imprecise: Whether products are known to be too imprecise; None: to be found out.
    """

    #: Where ``potrf`` writes its status. None: it raises instead.
    factor_info: Tensor | None = None
    sums_info: Tensor | None = None

    def __init__(self, operator: str, jitter: float, is_imprecise: bool | None = None) -> None:
        self.operator, self.jitter, self._is_imprecise = operator, jitter, is_imprecise
        #: Whether ``needs_solves`` will return False. Only then may the inverse of the factor of K_uu be
        #: used.
        self.are_products_precise = is_imprecise is False

    def check_value(self, value: Tensor) -> None:
        """Raise if the criterion is not finite."""
        if not value.isfinite():
            raise explain_value_failure(self.operator)

    def needs_solves(self, imprecision: Tensor) -> bool:
        """Whether products are so imprecise that each chunk is solved for."""
        return bool(imprecision > IMPRECISE) if self._is_imprecise is None else self._is_imprecise


class DeferredChecks:
    """Checks that keep numbers on the device until ``are_passed`` reads all of them at once.

    Args:
        operator: The name in messages.
        jitter: For messages, too.
        like: Has the device and the dtype.
        evaluation: Supplies the first choice, before anything is read, and stores the right one.
        assumption: On the device, whether the kernel's assumption about the points holds; None: it does.
    """

    def __init__(
        self, operator: str, jitter: float, like: Tensor, evaluation: Evaluation, assumption: Tensor | None
    ) -> None:
        self.operator, self.jitter, self._evaluation = operator, jitter, evaluation
        self.is_imprecise = evaluation.is_imprecise
        self.are_products_precise = not self.is_imprecise
        self._info = torch.zeros(2, dtype=torch.int32, device=like.device)
        self.factor_info, self.sums_info = self._info.unbind()
        self._assumption = assumption
        self._value: Tensor | None = None
        self._imprecision: Tensor | None = None
        #: After ``are_passed`` has returned False: whether products are imprecise, if that is known.
        self.found_imprecise: bool | None = None

    def check_value(self, value: Tensor) -> None:
        """Keep the criterion, which has to be finite, detached from its graph."""
        self._value = value.detach()

    def needs_solves(self, imprecision: Tensor) -> bool:
        """Whether each chunk is solved for: the choice of the last evaluation."""
        self._imprecision = imprecision
        return self.is_imprecise

    def hand_over(self) -> bool:
        """Hand the checks to the caller of ``Evaluation.defer_checks``; return False if there is none.

        Raises:
            OptionError: There is none, and a CUDA graph is being captured, so that nothing can be read.
        """
        if self._evaluation.deferred is not None:
            self._evaluation.deferred.append(self)
            return True
        if self._info.is_cuda and torch.cuda.is_current_stream_capturing():
            raise _exceptions.OptionError(
                f"{self.operator}: the host must read results, so this cannot be captured in a CUDA "
                f"graph. SparseGPRegression.fit records graphs by itself."
            )
        return False

    def are_passed(self) -> bool:
        """Read the numbers. Raise if something has failed; return False if the evaluation must be repeated.

        If the kernel's assumption does not hold, the matrices may be wrong, so the other numbers are ignored.
        """
        kept = (self._assumption, self._value, self._imprecision)
        read = [tensor.reshape(1).to(_statistics.ARITHMETIC) for tensor in kept if tensor is not None]
        factor_code, sums_code, *numbers = torch.cat([self._info.to(_statistics.ARITHMETIC), *read]).tolist()
        if self._assumption is not None and not numbers.pop(0):
            return False
        if factor_code:
            raise _statistics.explain_factor_failure(self.operator, self.jitter, int(factor_code))
        if sums_code:
            raise explain_sums_failure(self.operator, int(sums_code))
        if self._value is not None and not math.isfinite(numbers.pop(0)):
            raise explain_value_failure(self.operator)
        if self._imprecision is None:
            return True
        self.found_imprecise = self._evaluation.is_imprecise = numbers.pop(0) > IMPRECISE
        return self.found_imprecise == self.is_imprecise


def explain_sums_failure(operator: str, code: int) -> _exceptions.LapgradError:
    """Return the error for I + W / v without a Cholesky factor; ``code`` as of ``potrf``."""
    if code < 0:
        return _exceptions.NonFiniteError(
            f"{operator}: K_uf contains NaN or infinity. Check X and the parameters of the kernel.", (), -code
        )
    return _exceptions.NotPositiveDefiniteError(
        f"{operator}: I + W / noise_var is not positive definite up to rounding: noise_var is too small "
        f"beside the kernel.",
        (),
        code,
    )


def explain_value_failure(operator: str) -> _exceptions.NonFiniteError:
    """Return the error for a criterion that is not finite though all factors are."""
    return _exceptions.NonFiniteError(f"{operator}: the value is not finite: Y contains NaN or infinity.")
