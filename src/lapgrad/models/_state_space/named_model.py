"""State space models whose hyper-parameters are set, fixed, estimated and shown by their documented names."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from lapgrad import _errors, _exceptions
from lapgrad.models._parameters import Hyperparameter, Value
from lapgrad.models._state_space.covariance import Covariance
from lapgrad.models._state_space.names import name_hyperparameters
from lapgrad.models._state_space.summary import (
    Estimate,
    SeriesSummary,
    check_residuals,
    compute_errors,
    is_flat,
)

if TYPE_CHECKING:
    from lapgrad.models._model import Model as _Base
else:
    _Base = object


_LONGEST_EXACT = 300
_DIFFERENCE = 1e-3


class NamedModel(_Base):
    """Mixed into a model with a ``component`` and a ``noise_var``; see ``name_hyperparameters``."""

    y: Tensor
    noise_var: Any
    component: Any
    noise: Covariance | None

    def hyperparameters(self) -> dict[str, Tensor]:
        """Return all hyper-parameters in their own units, by name, detached."""
        return {
            name: self.noise_var.detach()
            if name == "noise_var"
            else getattr(module, descriptor.name).detach()
            for name, [(module, descriptor), *_] in name_hyperparameters(self).items()
        }

    def iterate_hyperparameters(self) -> Iterator[tuple[str, nn.Module, Hyperparameter]]:
        """Yield name, module and descriptor of all hyper-parameters, ``noise.deviations`` for the noise."""
        for name, found in name_hyperparameters(self).items():
            for module, descriptor in found:
                yield f"noise.{descriptor.name}" if name == "noise_var" else name, module, descriptor

    def set_values(self, values: Mapping[str, Value] | None = None, /, **more: Value) -> None:
        """Set hyper-parameters by name; they stay learned or fixed, as they were. A variance may be set to 0.

        Args:
            values: Values by name, such as ``{"seasonal.variance": 0.1}``.
            more: The same for names without a dot, such as ``noise_var=0.2``.

        Raises:
            OptionError: There is no hyper-parameter of that name, or it cannot have that value.
        """
        given: dict[str, Value] = {**(values or {}), **more}
        found = {name: self._find_named(name) for name in given}
        for name, value in given.items():
            if name == "noise_var":
                self.noise_var = value
                continue
            module, descriptor = found[name][0]
            setattr(module, name.rpartition(".")[2] if descriptor is None else descriptor.name, value)

    def set_prior(self, name: str, prior: Distribution | None) -> None:
        """Give a hyper-parameter a prior; that of the noise is one of its deviations, ``noise.deviations``.

        Raises:
            OptionError: There is no hyper-parameter of that name, or no density at its value.
        """
        if name == "noise_var" and self.noise is not None:
            raise _exceptions.OptionError(
                f"{type(self).__name__}: a prior of the noise is one of its standard deviation: pass "
                f"noise.deviations."
            )
        super().set_prior(name, prior)

    def set_bounds(self, name: str, low: float | None = None, high: float | None = None) -> None:
        """Keep a hyper-parameter between two values; if it is outside, it moves to the nearest value inside.

        Args:
            name: As in ``hyperparameters``; ``noise_var`` of series with one value at each time.
            low: It stays above this; None: as far as its kind allows.
            high: It stays below this; None: as far as its kind allows. With neither, bounds set before are
                removed.

        Raises:
            OptionError: There is no hyper-parameter of that name, or nothing between the bounds.
        """
        if name.endswith(".period") and name not in name_hyperparameters(self):
            self._find_named(name)
            name = f"{name.removesuffix('period')}frequency"
        if name != "noise_var" or self.noise is None or self.y.shape[-1] > 1:
            super().set_bounds(name, low, high)
            return
        if high is not None and not float(high) > 0.0:
            raise _exceptions.OptionError(f"{type(self).__name__}: noise_var cannot be below {high}.")
        squares = [None if bound is None else max(float(bound), 0.0) for bound in (low, high)]
        roots = [None if square is None else math.sqrt(square) for square in squares]
        super().set_bounds("noise.deviations", *roots)

    def fix(self, *names: str) -> None:
        """Exclude hyper-parameters from learning: they keep their values.

        Args:
            names: As in ``hyperparameters``; none: all of them.

        Raises:
            OptionError: There is no hyper-parameter of that name.
        """
        self._set_named(names, False)

    def free(self, *names: str) -> None:
        """Include hyper-parameters in learning again (no names: all of them but variances of 0)."""
        self._set_named(names, True)

    def _set_named(self, names: tuple[str, ...], learned: bool) -> None:
        for name in names or name_hyperparameters(self):
            for module, descriptor in self._find_named(name):
                raw = module.get_parameter("raw_frequency" if descriptor is None else descriptor.raw_name)
                is_zero = bool((raw <= -1e4).any())
                if learned and is_zero and names:
                    raise _exceptions.OptionError(
                        f"{type(self).__name__}: {name} is 0, where it has no gradient: set it to a positive "
                        f"value first."
                    )
                raw.requires_grad_(learned and not is_zero)

    def _find_named(self, name: str) -> list[tuple[nn.Module, Hyperparameter | None]]:
        """Return modules and descriptors of a name; a period, which is a property, has no descriptor."""
        found = name_hyperparameters(self)
        if name in found:
            return list(found[name])
        label, _, last = name.rpartition(".")
        if last == "period" and f"{label}.frequency" in found:
            return [(found[f"{label}.frequency"][0][0], None)]
        if name == "noise_var":
            return []  # of a model without noise
        known = [*found, *(f"{n.rpartition('.')[0]}.period" for n in found if n.endswith(".frequency"))]
        raise _errors.unknown_option(type(self).__name__, "name", name, known)

    def compute_hessian(self) -> Tensor:
        """Return the Hessian (k, k) of the loss by all learned numbers, in their unconstrained form.

        It is exact, by second derivatives of the filter, for series of up to 300 steps. Those of longer
        series would take long: there it is the derivative of the exact gradient by differences of fourth
        order.
        """
        learned = [p for p in self.parameters() if p.requires_grad and p.numel()]
        if not learned:
            return self.y.new_zeros(0, 0)
        if self.y.shape[1] > _LONGEST_EXACT:
            return _difference_gradients(self.loss, learned)
        with torch.enable_grad():
            first = torch.autograd.grad(self.loss(), learned, create_graph=True, materialize_grads=True)
            flat = torch.cat([gradient.flatten() for gradient in first])
            second = torch.autograd.grad(
                flat,
                learned,
                torch.eye(len(flat), dtype=flat.dtype, device=flat.device),
                is_grads_batched=True,
                materialize_grads=True,
            )
        hessian = torch.cat([part.reshape(len(flat), -1) for part in second], 1).detach()
        return 0.5 * (hessian + hessian.mT)

    def summarise(self, residuals: Tensor, diffuse: int) -> SeriesSummary:
        """Return the summary, given residuals (N, T, p) and the number of diffuse states."""
        observed = int((~self.y.isnan()).sum())
        hessian = self.compute_hessian().cpu().double()
        positions: dict[int, int] = {}
        count = 0
        for parameter in self.parameters():
            if parameter.requires_grad and parameter.numel():
                positions[id(parameter)] = count
                count += parameter.numel()
        slopes, rows = torch.zeros(count, dtype=torch.float64), list[tuple[str, float, int | None]]()
        for name, found in name_hyperparameters(self).items():
            for module, descriptor in found:
                raw = module.get_parameter(descriptor.raw_name)
                if name == "noise_var" and raw.numel() > 1:
                    name = f"noise.{descriptor.name}"
                value, slope = _differentiate(module, descriptor, is_squared=name == "noise_var")
                first = positions.get(id(raw))
                for i, (number, derivative) in enumerate(zip(value.tolist(), slope.tolist(), strict=True)):
                    shown = name if len(value) == 1 else f"{name}[{i}]"
                    rows.append((shown, number, None if first is None else first + i))
                    if first is not None:
                        slopes[first + i] = derivative
        errors = compute_errors(hessian, slopes, observed)
        estimates = [
            Estimate(
                name,
                value,
                float("nan") if at is None else float(errors[at]),
                _explain(hessian, errors, at, observed),
            )
            for name, value, at in rows
        ]
        with torch.no_grad():
            likelihood = -self.loss().item()
        tests = [check_residuals(residuals[..., i].flatten()) for i in range(residuals.shape[-1])]
        return SeriesSummary(repr(self), likelihood, observed, diffuse, count, estimates, tests)

    def __repr__(self) -> str:
        """The component with the values of its hyper-parameters, the noise, and the size of the data."""
        series, times, values = self.y.shape
        size = f"{times} steps" if series == 1 else f"{series} series, {times} steps"
        size += f", {values} values" if values > 1 else ""
        noise = self.noise_var.detach()
        shown = f"{noise.item():.4g}" if noise.numel() == 1 else f"({values}, {values})"
        return f"{type(self).__name__}({self.component!r}, noise_var={shown}; {size})"


def _explain(hessian: Tensor, errors: Tensor, at: int | None, observed: int) -> str:
    """Return why an estimate has no standard error; "" if it has one."""
    if at is None:
        return "fixed"
    if not bool(errors[at].isnan()):
        return ""
    return "at its bound" if is_flat(hessian[at, at], observed) else "not at a maximum of the likelihood"


def _differentiate(
    module: nn.Module, descriptor: Hyperparameter, *, is_squared: bool
) -> tuple[Tensor, Tensor]:
    """Return the numbers of a hyper-parameter and their derivatives by the raw ones, float64 on the CPU."""
    raw = module.get_parameter(descriptor.raw_name)
    was_learned = raw.requires_grad
    raw.requires_grad_(True)
    try:
        with torch.enable_grad():
            value = getattr(module, descriptor.name)
            value = value.square() if is_squared and isinstance(module, Covariance) else value
            (slope,) = torch.autograd.grad(value.sum(), raw)
    finally:
        raw.requires_grad_(was_learned)
    return value.detach().flatten().cpu().double(), slope.flatten().cpu().double()


def _difference_gradients(loss: Callable[[], Tensor], learned: list[nn.Parameter]) -> Tensor:
    """Return the Hessian by g'(x) = (8 (g(x + h) - g(x - h)) - (g(x + 2h) - g(x - 2h))) / 12h."""

    def compute_gradient() -> Tensor:
        with torch.enable_grad():
            found = torch.autograd.grad(loss(), learned, materialize_grads=True)
        return torch.cat([gradient.flatten() for gradient in found])

    rows = []
    with torch.no_grad():
        for parameter in learned:
            numbers = parameter.view(-1)
            for i in range(len(numbers)):
                kept, row = numbers[i].clone(), torch.zeros((), dtype=numbers.dtype, device=numbers.device)
                for shift, weight in ((1, 8.0), (-1, -8.0), (2, -1.0), (-2, 1.0)):
                    numbers[i] = kept + shift * _DIFFERENCE
                    row = row + weight / (12.0 * _DIFFERENCE) * compute_gradient()
                numbers[i] = kept
                rows.append(row)
    hessian = torch.stack(rows)
    return 0.5 * (hessian + hessian.mT)
