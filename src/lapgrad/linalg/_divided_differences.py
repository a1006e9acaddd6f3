"""Divided differences of functions: F_ij = (f(a_i) - f(a_j)) / (a_i - a_j), and f'(a_i) where both are equal.

The plain quotient loses all digits as the arguments approach each other. Each function here has a form
without that cancellation, in tensor operations that have derivatives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.compiler import is_exporting

Function = Callable[[Tensor], Tensor]

#: Older versions of torch do not export ``torch.func.jvp``: there the graph keeps the example's batch size.
_EXPORTS_FORWARD_MODE = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 13)


class Rule(NamedTuple):
    """A function of real numbers.

    Attributes:
        value: f of each entry; not finite where f is not defined.
        differences: (*batch, n) -> (*batch, n, n), the divided differences.
    """

    value: Function
    differences: Function


def find_rule(f: str, exponent: float | None, tol: float) -> Rule:
    """Return the rule for a function by name; ``tol``: eigenvalues of this relative size may be zeros."""
    if f == "power":
        assert exponent is not None
        return _make_power(exponent, tol)
    return _NAMED[f](tol)


#: "power" takes an exponent.
NAMES = ("exp", "log", "sqrt", "rsqrt", "inv", "power")


def _sort_pairs(a: Tensor) -> tuple[Tensor, Tensor]:
    """Return the larger and the smaller of each pair."""
    first, second = a.unsqueeze(-1), a.unsqueeze(-2)
    return torch.maximum(first, second), torch.minimum(first, second)


def _divide_expm1(x: Tensor) -> Tensor:
    """(exp(x) - 1) / x; its series near zero, which has derivatives there."""
    small = x.abs() < 1e-2
    t = torch.where(small, x, 0.0)
    series = 1 + t / 2 * (1 + t / 3 * (1 + t / 4 * (1 + t / 5 * (1 + t / 6 * (1 + t / 7)))))
    away = torch.where(small, 1.0, x)
    return torch.where(small, series, torch.expm1(away) / away)


def _divide_log1p(x: Tensor) -> Tensor:
    """log(1 + x) / x for x >= 0; its series near zero."""
    small = x < 1e-2
    t = torch.where(small, x, 0.0)
    series = 1 - t * (1 / 2 - t * (1 / 3 - t * (1 / 4 - t * (1 / 5 - t * (1 / 6 - t * (1 / 7 - t / 8))))))
    away = torch.where(small, 1.0, x)
    return torch.where(small, series, torch.log1p(away) / away)


def _bound_zero(a: Tensor, tol: float) -> Tensor:
    """Return the largest size of a zero eigenvalue after rounding, (*batch, 1)."""
    if a.shape[-1] == 0:
        return a.new_zeros((*a.shape[:-1], 1))
    return tol * a.detach().abs().amax(-1, keepdim=True)


def _clear_rounding(a: Tensor, tol: float) -> Tensor:
    """a with zeros in place of eigenvalues that are negative by rounding only."""
    return torch.where((a < 0) & (a >= -_bound_zero(a, tol)), 0.0, a)


def _find_nonzero_pairs(a: Tensor, tol: float) -> Tensor:
    """bool (*batch, n, n), True for pairs with at least one value above rounding errors."""
    some = a > _bound_zero(a, tol)
    return some.unsqueeze(-1) | some.unsqueeze(-2)


def _keep_positive(a: Tensor) -> Tensor:
    """a, at least the smallest positive number: at zero roots have no derivative."""
    return a.clamp_min(torch.finfo(a.dtype).tiny)


def _make_exp(tol: float) -> Rule:
    def differences(a: Tensor) -> Tensor:
        """e^a (1 - e^-(a - b)) / (a - b) for a >= b: nothing overflows that the result does not."""
        larger, smaller = _sort_pairs(a)
        return larger.exp() * _divide_expm1(smaller - larger)

    return Rule(torch.exp, differences)


def _make_log(tol: float) -> Rule:
    def differences(a: Tensor) -> Tensor:
        """log(1 + x) / (x b) with x = (a - b) / b; the plain quotient where a is far above b."""
        larger, smaller = _sort_pairs(a)
        close = larger < 2 * smaller
        near, base = torch.where(close, larger, 1.0), torch.where(close, smaller, 1.0)
        gap = torch.where(close, 1.0, larger - smaller)
        return torch.where(
            close, _divide_log1p((near - base) / base) / base, (larger.log() - smaller.log()) / gap
        )

    return Rule(torch.log, differences)


def _make_sqrt(tol: float) -> Rule:
    def differences(a: Tensor) -> Tensor:
        """1 / (sqrt(a) + sqrt(b)); 0 where both are zero, and the derivative is infinite."""
        root = _keep_positive(_clear_rounding(a, tol)).sqrt()
        inverse = (root.unsqueeze(-1) + root.unsqueeze(-2)).reciprocal()
        return torch.where(_find_nonzero_pairs(a, tol), inverse, 0.0)

    return Rule(lambda a: _clear_rounding(a, tol).sqrt(), differences)


def _make_rsqrt(tol: float) -> Rule:
    def differences(a: Tensor) -> Tensor:
        """-1 / (sqrt(a) sqrt(b) (sqrt(a) + sqrt(b)))."""
        root = _keep_positive(a).sqrt()
        inverse, both = root.reciprocal(), root.unsqueeze(-1) + root.unsqueeze(-2)
        return -inverse.unsqueeze(-1) / both * inverse.unsqueeze(-2)

    return Rule(torch.rsqrt, differences)


def _make_inv(tol: float) -> Rule:
    def differences(a: Tensor) -> Tensor:
        """-1 / (a b)."""
        inverse = a.reciprocal()
        return -inverse.unsqueeze(-1) * inverse.unsqueeze(-2)

    return Rule(torch.reciprocal, differences)


_NAMED = {"exp": _make_exp, "log": _make_log, "sqrt": _make_sqrt, "rsqrt": _make_rsqrt, "inv": _make_inv}

#: Up to this the powers of whole exponents are multiplied out.
_LARGEST_WHOLE = 64


def _make_power(exponent: float, tol: float) -> Rule:
    if exponent == int(exponent) and abs(exponent) <= _LARGEST_WHOLE:
        return _make_whole_power(int(exponent))

    def value(a: Tensor) -> Tensor:
        return (_clear_rounding(a, tol) if exponent > 0 else a) ** exponent

    def differences(a: Tensor) -> Tensor:
        """b^(p-1) (e^(pL) - 1) / (e^L - 1), L = log(a / b); the plain quotient where a is far above b.

        For 0 < p < 1 it is 0 where both are zero, and the derivative is infinite.
        """
        larger, smaller = (_keep_positive(x) for x in _sort_pairs(_clear_rounding(a, tol)))
        close = larger < 2 * smaller
        near, base = torch.where(close, larger, 1.0), torch.where(close, smaller, 1.0)
        step = torch.log1p((near - base) / base)
        smooth = exponent * base ** (exponent - 1) * _divide_expm1(exponent * step) / _divide_expm1(step)
        gap = torch.where(close, 1.0, larger - smaller)
        found = torch.where(close, smooth, (larger**exponent - smaller**exponent) / gap)
        if not 0 < exponent < 1:
            return found
        return torch.where(_find_nonzero_pairs(a, tol), found, 0.0)

    return Rule(value, differences)


def _make_whole_power(exponent: int) -> Rule:
    """Return the rule for a whole exponent, at any eigenvalues (for a negative exponent except zero)."""

    def differences(a: Tensor) -> Tensor:
        """a^(p-1) + a^(p-2) b + ... + b^(p-1), p = |exponent|; for a negative one divided by -(a b)^p."""
        first, second = a.unsqueeze(-1), a.unsqueeze(-2)
        total, power = torch.zeros_like(first - second), torch.ones_like(second)
        for _ in range(abs(exponent)):
            total, power = total * first + power, power * second
        return total if exponent >= 0 else -total * first**exponent * second**exponent

    return Rule(lambda a: a**exponent, differences)


def make_rule(f: Function) -> Rule:
    """Return the rule for a function that maps a tensor entry by entry, with its derivative by autograd."""

    def derivative(x: Tensor) -> Tensor:
        if is_exporting() and _EXPORTS_FORWARD_MODE:
            # In a graph that torch.func.vjp records, torch.export would fix the batch size of the example.
            slope: Tensor = torch.func.jvp(f, (x,), (torch.ones_like(x),))[1]
            return slope
        # Reverse mode, because x may carry a tangent, and torch.func.jvp refuses that.
        pull_back = torch.func.vjp(f, x)[1]
        return pull_back(torch.ones_like(x))[0]

    def differences(a: Tensor) -> Tensor:
        """The plain quotient; for close pairs the mean of f' between them, by Gauss' rule of three points."""
        values = f(a)
        first, second = a.unsqueeze(-1), a.unsqueeze(-2)
        gap = first - second
        close = gap.abs() <= torch.finfo(a.dtype).eps ** 0.25 * torch.maximum(first.abs(), second.abs())
        middle = torch.where(close, 0.5 * (first + second), first)
        side = torch.where(close, 0.5 * 0.6**0.5 * gap, 0.0)
        mean = (8 * derivative(middle) + 5 * (derivative(middle - side) + derivative(middle + side))) / 18
        quotient = (values.unsqueeze(-1) - values.unsqueeze(-2)) / torch.where(close, 1.0, gap)
        return torch.where(close, mean, quotient)

    return Rule(f, differences)
