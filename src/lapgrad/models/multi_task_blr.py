"""Many regression tasks on shared features: a Bayesian linear regression for each, on top of one network."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from lapgrad import _errors, _exceptions
from lapgrad.distributed.group import Group, as_group
from lapgrad.distributed.losses import sum_loss
from lapgrad.models import _checks
from lapgrad.models._linear import weights as _weights
from lapgrad.models._linear.ridge import METHODS, Method
from lapgrad.models._linear.weights import WeightPosterior
from lapgrad.models._model import Model
from lapgrad.models._parameters import above, positive
from lapgrad.models._prediction import Prediction
from lapgrad.models._products import multiply
from lapgrad.models._storage.entries import FLAG, INTEGERS, PART, TEXT, check_entries
from lapgrad.models.bayesian_linear_regression import compute_variance
from lapgrad.models.criteria.blr_nll import blr_nll
from lapgrad.models.features import describe_features, evaluate_features, fix_parameters, make_features

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_LOG_2_PI = math.log(2.0 * math.pi)

#: The entries of the description in a file.
_ENTRIES = {
    "features": PART,
    "bias": FLAG,
    "method": TEXT,
    "sizes": INTEGERS,
}


class MultiTaskBLR(Model):
    """y_t = w_t0 + sum_j w_tj phi_j(x) + noise in each task t, with the same features phi for all tasks.

    The loss is the sum of the negative log marginal likelihoods of the tasks: gradients of all of them learn
    the features, while each task has its own noise and prior variances, and its weights are integrated out. A
    task with few observations benefits from features that the others have learned (Perrone, Jenatton, Seeger
    and Archambeau, 2017).

    Args:
        tasks: (X, y) of each task: X (n_t, d) or (n_t,), y (n_t,). Sizes may differ; they may be 0.
        features: An ``nn.Module`` that maps (n, d) to (n, m). It becomes part of the model, and moves to the
            dtype and device of the data. None: the inputs.
        bias: Include the weight w_t0 of the constant 1 in each task, with its own prior variance.
        method: "lq" or "cholesky", see ``blr_nll``.
        group: Processes that each have their own tasks, and learn together (``distributed.Group``). Tasks
            are numbered over all processes, in the order of their ranks, and each process knows the
            hyper-parameters of all of them, but the data of its own only: it can predict those. None: one
            process.

    Attributes:
        noise_var: (T,), the variance of the noise in each task; learned above ``noise_floor``, 1.5e-8 of
            the variance of its targets.
        prior_var: (T,), the prior variance of its weights.
        bias_var: (T,), that of the bias.

    Raises:
        DTypeError, DeviceError, ShapeError: The data are not float32 or float64 tensors that fit.
        NonFiniteError: Names the rows with NaN or infinity.
        OptionError: There is no task with data, or ``method`` is unknown.

    Example:
        >>> import torch
        >>> from lapgrad.models import MultiTaskBLR, PolynomialFeatures
        >>> x = torch.linspace(0.0, 1.0, 9, dtype=torch.float64)
        >>> model = MultiTaskBLR([(x, x**2), (x[:4], 1.0 - x[:4])], PolynomialFeatures(2))
        >>> model.loss().shape, model.predict(1, x).mean.shape
        (torch.Size([]), torch.Size([9]))
    """

    noise_var = above("noise_floor")
    prior_var = positive()
    bias_var = positive()

    X: Tensor
    y: Tensor
    noise_floor: Tensor

    def __init__(
        self,
        tasks: Sequence[tuple[Tensor, Tensor]],
        features: nn.Module | None = None,
        *,
        bias: bool = True,
        method: Method = "lq",
        group: Group | ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        self.group = as_group("MultiTaskBLR", group)
        shared = self.group or Group()
        counts = torch.zeros(2 * shared.size, dtype=torch.float64)
        with shared.expect_sum(len(counts)) as pending:
            pairs = _check_tasks(tasks, method)
            counts[2 * shared.rank] = len(pairs)
            counts[2 * shared.rank + 1] = sum(len(X) for X, _ in pairs)
            pending.start([counts])
            pending.wait()
        # Tasks are numbered over all processes. Those of the others stand in the list, too, with no rows.
        nothing = pairs[0][0][:0], pairs[0][1][:0]
        before, behind = counts[: 2 * shared.rank : 2].sum(), counts[2 * shared.rank + 2 :: 2].sum()
        own = slice(int(before), int(before) + len(pairs))
        pairs = [nothing] * int(before) + pairs + [nothing] * int(behind)
        self.bias = bias
        self.method: Method = method
        self.sizes = [len(X) for X, _ in pairs]
        self._own_tasks = range(own.start, own.stop)
        self.register_buffer("X", torch.cat([X for X, _ in pairs]).detach())
        self.register_buffer("y", torch.cat([y for _, y in pairs]).detach())
        self.features = features
        self.to(dtype=self.X.dtype, device=self.X.device)
        with torch.no_grad():
            Phi = evaluate_features("MultiTaskBLR", self.features, self.X)
        self.feature_count = Phi.shape[1]
        spreads = self.y.new_tensor([compute_variance(y) for _, y in pairs])
        offsets = self.y.new_tensor([float(y.mean()) if len(y) else 0.0 for _, y in pairs])
        size, rows = Phi.square().sum(), counts[1::2].sum().to(Phi)
        for values in (spreads, offsets):
            values.copy_(_keep_only(values, own))
        shared.sum_tensors([spreads, offsets, size])
        self.register_buffer("noise_floor", torch.finfo(torch.float64).eps ** 0.5 * spreads)
        self.noise_var = 0.1 * spreads
        self.prior_var = spreads / (size / rows).clamp_min(1e-6)
        if bias:
            self.bias_var = spreads + offsets.square()
        self.to(dtype=self.X.dtype, device=self.X.device)
        shared.copy_from_first(list(self.parameters()))

    def loss(self) -> Tensor:
        """Return the sum of the negative log marginal likelihoods of all tasks, in float64."""
        if self.group is None:
            return self._compute_own_loss()
        return sum_loss(self.group, self._compute_own_loss, list(self.parameters()))

    def _compute_own_loss(self) -> Tensor:
        """Return the loss of the tasks of this process."""
        Phi = self.design(self.X).split(self.sizes)
        y = self.y.double().split(self.sizes)
        noise, prior = self.noise_var.double(), self.weight_var().double()
        total = noise.new_zeros(())
        for group in _group_by_size(self.sizes):
            # Rows of zeros pad tasks to the same size. Each adds -log N(0 | 0, noise), which is subtracted
            # below.
            padded = pad_sequence([Phi[t] for t in group], batch_first=True)
            targets = pad_sequence([y[t] for t in group], batch_first=True)
            rows = padded.shape[1] - noise.new_tensor([self.sizes[t] for t in group])
            values = blr_nll(padded, targets, noise[group], prior[group], method=self.method)
            total = total + (values - 0.5 * rows * (noise[group].log() + _LOG_2_PI)).sum()
        return total

    def design(self, X: Tensor) -> Tensor:
        """Return the design matrix (n, m') of X (n, d) in float64: 1 for the bias, then the features."""
        Phi = evaluate_features("MultiTaskBLR", self.features, X).double()
        return torch.cat([torch.ones_like(Phi[:, :1]), Phi], dim=1) if self.bias else Phi

    def weight_var(self) -> Tensor:
        """Return the prior variance of each weight in each task, (T, m')."""
        prior = self.prior_var[:, None].expand(-1, self.feature_count)
        return torch.cat([self.bias_var[:, None], prior], dim=1) if self.bias else prior

    def observe(self, task: int, X: Tensor, y: Tensor) -> None:
        """Add observations to a task; hyper-parameters stay as they are.

        Args:
            task: Its number.
            X: (n', d) or (n',).
            y: (n',).
        """
        task = self._check_task(task)
        X = _checks.check_inputs("MultiTaskBLR.observe", X, columns=self.X.shape[1])
        Y = _checks.check_targets("MultiTaskBLR.observe", y, X, outputs=1)
        _checks.check_same_kind("MultiTaskBLR.observe", X=X, data=self.X)
        end = sum(self.sizes[: task + 1])
        self.X = torch.cat([self.X[:end], X.detach(), self.X[end:]])
        self.y = torch.cat([self.y[:end], Y[:, 0].detach(), self.y[end:]])
        self.sizes[task] += len(X)

    def data(self, task: int) -> tuple[Tensor, Tensor]:
        """Return the observations of a task: X (n_t, d) and y (n_t,)."""
        task = self._check_task(task)
        return self.X.split(self.sizes)[task], self.y.split(self.sizes)[task]

    def posterior(self, task: int) -> WeightPosterior:
        """Return the distribution of the weights of a task.

        Returns:
            mean (m', 1), and factor (m', m') with factor factorᵀ the covariance. The weight of the bias comes
            first.
        """
        task = self._check_task(task)
        X, y = self.data(task)
        return _weights.compute_posterior(
            "MultiTaskBLR",
            self.design(X),
            y[:, None].double(),
            self.noise_var[task].double(),
            self.weight_var()[task].double(),
            self.method,
        )

    def predict(self, task: int, X_new: Tensor, *, noise: bool = False, full_cov: bool = False) -> Prediction:
        """Return the distribution of f_t, or of observations, at new inputs.

        Differentiable with respect to ``X_new``; the parameters count as constants.

        Args:
            task: Number of the task.
            X_new: (n', d) or (n',).
            noise: Predict observations, with the variance of the noise.
            full_cov: Return the covariance of all pairs in place of the variances.

        Returns:
            mean (n'), and variance (n') or covariance (n', n').
        """
        posterior, design = self._prepare_prediction(task, self._check_new_inputs("predict", X_new))
        noise_var = self._get_noise_var(task) if noise else None
        mean, spread = _weights.predict_targets(posterior, design, noise_var, full_cov)
        return Prediction(mean.squeeze(-1).to(X_new.dtype), spread.to(X_new.dtype))

    def sample(
        self,
        task: int,
        X_new: Tensor,
        count: int = 1,
        *,
        noise: bool = False,
        generator: torch.Generator | int | None = None,
    ) -> Tensor:
        """Return draws (count, n') of f_t (with ``noise``: of observations), each of one function.

        Args:
            task: Number of the task.
            X_new: (n', d) or (n',).
            count: How many draws.
            noise: Draw observations.
            generator: Source of random numbers: a ``torch.Generator``, a seed, or None for torch's own.
        """
        posterior, design = self._prepare_prediction(task, self._check_new_inputs("sample", X_new))
        source = _checks.make_generator("MultiTaskBLR.sample", generator, self.X.device)
        draws = multiply(design, posterior.sample(count, source)).squeeze(-1)
        if noise:
            normal = torch.randn(draws.shape, dtype=draws.dtype, device=draws.device, generator=source)
            draws = draws + self._get_noise_var(task).sqrt() * normal
        return draws.to(X_new.dtype)

    def log_prob(self, task: int, X_new: Tensor, y_new: Tensor, *, joint: bool = False) -> Tensor:
        """log p(y_new | X_new, data), the density of observations of a task at new inputs, noise included.

        Args:
            task: Number of the task.
            X_new: (n', d) or (n',).
            y_new: (n',).
            joint: Return the density of all n' together, not of each.

        Returns:
            (n'); with ``joint`` a scalar.
        """
        X_new = self._check_new_inputs("log_prob", X_new)
        Y_new = _checks.check_targets("MultiTaskBLR.log_prob", y_new, X_new, "y_new", outputs=1)
        posterior, design = self._prepare_prediction(task, X_new)
        noise_var, Y_new = self._get_noise_var(task), Y_new.double()
        if joint:
            values = _weights.compute_joint_log_densities(posterior, design, Y_new, noise_var, self.method)
        else:
            values = _weights.compute_log_densities(posterior, design, Y_new, noise_var)
        return values.squeeze(-1).to(X_new.dtype)

    def config(self) -> dict[str, Any]:
        """Return the arguments of the constructor that are no tensors."""
        return {
            "features": describe_features(self.features),
            "bias": self.bias,
            "method": self.method,
            "sizes": self.sizes,
        }

    @classmethod
    def from_config(
        cls, config: dict[str, Any], tensors: Mapping[str, Tensor], modules: Mapping[str, nn.Module]
    ) -> Self:
        """Return a model of this description with the data that were saved."""
        check_entries(config, _ENTRIES)
        parts = (tensors[name].split(config["sizes"]) for name in ("X", "y"))
        features = make_features(cls.__name__, config["features"], modules)
        return cls(list(zip(*parts, strict=True)), features, bias=config["bias"], method=config["method"])

    def _prepare_prediction(self, task: int, X_new: Tensor) -> tuple[WeightPosterior, Tensor]:
        """Return the posterior of a task and the design of new inputs, without gradients of parameters."""
        with torch.no_grad():
            posterior = self.posterior(task)
        with fix_parameters(self.features):
            return posterior, self.design(X_new)

    def _get_noise_var(self, task: int) -> Tensor:
        return self.noise_var[self._check_task(task)].detach().double()

    def _check_task(self, task: int) -> int:
        if not -len(self.sizes) <= task < len(self.sizes):
            raise _exceptions.OptionError(f"MultiTaskBLR: there are {len(self.sizes)} tasks, no task {task}.")
        if self.group is not None and task % len(self.sizes) not in self._own_tasks:
            raise _exceptions.OptionError(f"MultiTaskBLR: another process has the data of task {task}.")
        return task % len(self.sizes)

    def _check_new_inputs(self, method: str, X_new: Tensor) -> Tensor:
        who = f"MultiTaskBLR.{method}"
        X_new = _checks.check_inputs(who, X_new, "X_new", columns=self.X.shape[1], empty=True)
        _checks.check_same_kind(who, X_new=X_new, X=self.X)
        return X_new


def _check_tasks(tasks: Sequence[tuple[Tensor, Tensor]], method: str) -> list[tuple[Tensor, Tensor]]:
    """Return X (n_t, d) and y (n_t,) of each task; raise if they do not fit each other."""
    if method not in METHODS:
        raise _errors.unknown_option("MultiTaskBLR", "method", method, METHODS)
    for t, task in enumerate(tasks):
        if not isinstance(task, list | tuple) or len(task) != 2:
            raise _exceptions.OptionError(
                f"MultiTaskBLR: tasks must be a list of pairs (X, y), got {type(task).__name__} at index {t}."
            )
    pairs = [_check_data(t, *task) for t, task in enumerate(tasks)]
    if not any(len(X) for X, _ in pairs):
        raise _exceptions.OptionError("MultiTaskBLR: tasks must have at least one observation between them.")
    _checks.check_same_kind("MultiTaskBLR", **{f"X of task {t}": X for t, (X, _) in enumerate(pairs)})
    columns = {X.shape[1] for X, _ in pairs}
    if len(columns) > 1:
        raise _exceptions.ShapeError(
            f"MultiTaskBLR: X of all tasks must have the same number of columns, got {sorted(columns)}."
        )
    return pairs


def _keep_only(values: Tensor, own: slice) -> Tensor:
    """Return the entries of this process, and zeros for those of others."""
    kept = torch.zeros_like(values)
    kept[own] = values[own]
    return kept


def _check_data(task: int, X: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    who = f"MultiTaskBLR: task {task}"
    X = _checks.check_inputs(who, X, empty=True)
    return X, _checks.check_targets(who, y, X, outputs=1)[:, 0]


def _group_by_size(sizes: Sequence[int]) -> list[list[int]]:
    """Group tasks whose sizes lie between two powers of 2, so that padding at most doubles them."""
    groups: dict[int, list[int]] = {}
    for task, size in enumerate(sizes):
        if size:
            groups.setdefault((size - 1).bit_length(), []).append(task)
    return list(groups.values())
