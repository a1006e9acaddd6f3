"""Data that are not in memory as a whole: rows of several processes, or rows that are read from a file.

Each process passes over its own rows in chunks. Means, deviations and starting values, which must be the same
on all processes, come from sums over all processes and from a sample of rows that all of them see.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from lapgrad import _exceptions
from lapgrad.distributed.group import Group
from lapgrad.distributed.streams import RowStream, TensorStream
from lapgrad.fused._sgp.rows import ARITHMETIC
from lapgrad.fused._sgp.statistics import split_rows
from lapgrad.models import _checks
from lapgrad.models._training.progress import RowCounter

#: Rows that all processes see, to start from.
SAMPLE = 1 << 15
#: Rows that are read at a time if no matrices are computed from them.
_ROWS = 1 << 16


@dataclasses.dataclass(frozen=True)
class Moments:
    """Means and variances of the columns of some rows, in float64.

    Attributes:
        count: (), how many rows.
        mean: (d,).
        squares: (d,), the sums of squared deviations from the mean.
    """

    count: Tensor
    mean: Tensor
    squares: Tensor

    @property
    def variance(self) -> Tensor:
        """The variance of each column, (d,)."""
        return self.squares / self.count

    def compute_spread(self, dtype: torch.dtype) -> Tensor:
        """Return the standard deviation of each column, and 1 where it is 0 up to rounding of ``dtype``."""
        deviation = self.variance.sqrt()
        size = (self.variance + self.mean.square()).sqrt()
        return torch.where(deviation > 10.0 * torch.finfo(dtype).eps * size, deviation, 1.0)


class SpreadRows:
    """The rows of inputs and targets of one process, and what it knows of those of the others.

    Args:
        who: Name of the model, for messages.
        X: (n, d) or (n,), the inputs of this process.
        y: (n,) or (n, k), its targets.
        group: The processes.

    Attributes:
        total: How many rows all processes have.
        moments: Of inputs and targets of all processes.

    Raises:
        DTypeError, DeviceError, ShapeError, NonFiniteError: The data do not fit. It is raised on all
            processes if it is found on one.
    """

    def __init__(self, who: str, X: Tensor | RowStream, y: Tensor | RowStream, group: Group) -> None:
        self.group = group
        sizes = torch.zeros(5, dtype=ARITHMETIC)
        with group.expect_sum(len(sizes)) as pending:
            self.X, self.y = _open_rows(who, X, y)
            d, k = self.X.shape[1], self.y.shape[1]
            sizes.copy_(torch.tensor([len(self.X), d, k, d * d, k * k]))
            pending.start([sizes])
            pending.wait()
        n, inputs, outputs, *squares = sizes.tolist()
        if squares[0] * group.size != inputs**2 or squares[1] * group.size != outputs**2:
            raise _exceptions.ShapeError(f"{who}: X or y has another number of columns on another process.")
        if not n:
            raise _exceptions.ShapeError(f"{who}: X has no rows, at least one is wanted.")
        self.offset, self.total = group.find_offset(len(self.X))
        self.moments = self._compute_moments(who)

    @property
    def count(self) -> int:
        """How many rows this process has."""
        return len(self.X)

    def read_sample(self) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of up to ``SAMPLE`` rows, evenly spaced over those of all processes.

        All processes get the same ones. If there are no more rows than that, it is all of them.
        """
        size = min(self.total, SAMPLE)
        wanted = torch.arange(size) * self.total // size
        own = wanted[(wanted >= self.offset) & (wanted < self.offset + self.count)] - self.offset
        begin = int((wanted < self.offset).sum())
        X, y = (stream.read_sample(own) for stream in (self.X, self.y))
        return self.group.gather_rows(X, begin, size), self.group.gather_rows(y, begin, size)

    def _compute_moments(self, who: str) -> tuple[Moments, Moments]:
        """Return the moments of inputs and targets of all processes, by one pass over the rows."""
        sizes = self.X.shape[1] + self.y.shape[1]
        sums, squares = torch.zeros(sizes, dtype=ARITHMETIC), torch.zeros(sizes, dtype=ARITHMETIC)
        mean = torch.zeros(sizes, dtype=ARITHMETIC)
        with self.group.expect_sum(sizes) as pending:
            done = 0
            for rows in split_rows(self.count, _ROWS):
                chunk = self._read_checked(who, rows)
                part = chunk.mean(0)
                # Two sets of m and n rows: their squared deviations, and m n / (m + n) times the squared
                # distance of their means (Chan, Golub and LeVeque 1983).
                weight = done * len(chunk) / (done + len(chunk))
                squares += (chunk - part).square().sum(0) + weight * (part - mean).square()
                done += len(chunk)
                mean += (part - mean) * (len(chunk) / done)
            sums.copy_(done * mean)
            pending.start([sums])
            pending.wait()
        everywhere = sums / self.total
        squares += self.count * (mean - everywhere).square()
        self.group.sum_tensors([squares])
        count = torch.tensor(float(self.total), dtype=ARITHMETIC)
        split = [self.X.shape[1], self.y.shape[1]]
        (x_mean, y_mean), (x_squares, y_squares) = everywhere.split(split), squares.split(split)
        return Moments(count, x_mean, x_squares), Moments(count, y_mean, y_squares)

    def _read_checked(self, who: str, rows: slice) -> Tensor:
        """Return inputs and targets of some rows side by side, on the CPU; raise if they are not finite."""
        parts = [stream.read_rows(rows).to("cpu", ARITHMETIC) for stream in (self.X, self.y)]
        for name, part in zip(("X", "y"), parts, strict=True):
            _checks.check_finite_rows(who, part, name, first=rows.start)
        return torch.cat(parts, 1)


def _open_rows(who: str, X: Tensor | RowStream, y: Tensor | RowStream) -> tuple[RowStream, RowStream]:
    """Return inputs and targets as streams of matrices; raise if they do not fit each other."""
    streams: list[RowStream] = []
    for name, value in (("X", X), ("y", y)):
        if not isinstance(value, RowStream):
            value = _checks.check_float_tensor(who, value, name)
            if value.dim() not in (1, 2):
                raise _exceptions.ShapeError(
                    f"{who}: {name} must be a vector or a matrix, got {tuple(value.shape)}."
                )
            value = TensorStream(value.detach()[:, None] if value.dim() == 1 else value.detach())
        streams.append(value)
    inputs, targets = streams
    if len(inputs) != len(targets):
        raise _exceptions.ShapeError(f"{who}: X has {len(inputs)} rows, and y has {len(targets)}.")
    if inputs.dtype != targets.dtype:
        raise _exceptions.DTypeError(f"{who}: X is {inputs.dtype}, and y is {targets.dtype}.")
    return inputs, targets


class Residuals:
    """The rows of one process as a sparse Gaussian process sees them: standardised, without the mean.

    Args:
        source: The rows.
        scale_inputs, scale_targets: Standardise rows in float64.
        compute_mean: Returns the mean at scaled inputs (m, d), given the parameters of the mean function, in
            a shape that broadcasts to (m, k).
        counter: Counts the rows that are read.
    """

    def __init__(
        self,
        source: SpreadRows,
        scale_inputs: Callable[[Tensor], Tensor],
        scale_targets: Callable[[Tensor], Tensor],
        compute_mean: Callable[[Tensor, Sequence[Tensor]], Tensor],
        counter: RowCounter,
    ) -> None:
        self._source, self._counter = source, counter
        self._scale_inputs, self._scale_targets = scale_inputs, scale_targets
        self._compute_mean = compute_mean

    @property
    def count(self) -> int:
        """How many rows this process has."""
        return self._source.count

    @property
    def outputs(self) -> int:
        """Columns of the targets."""
        return self._source.y.shape[1]

    def read(self, rows: slice, parameters: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Return inputs and targets in float64; gradients of the targets go to ``parameters``."""
        inputs = self._scale_inputs(self._source.X.read_rows(rows))
        targets = self._scale_targets(self._source.y.read_rows(rows))
        self._counter.advance(len(inputs))
        return inputs, targets - self._compute_mean(inputs, parameters)


def register_rows(module: nn.Module, rows: SpreadRows, normalise: bool) -> tuple[Tensor, Tensor]:
    """Register scales, and ``X`` and ``y`` without rows, as buffers; return a sample of the rows."""
    X, y = rows.read_sample()
    module.register_buffer("X", X[:0].clone())
    module.register_buffer("y", y[:0].clone())
    for name, values, moments in (("x", X, rows.moments[0]), ("y", y, rows.moments[1])):
        scale = moments.compute_spread(values.dtype)
        scale = scale.square().mean().sqrt() if name == "y" else scale  # all targets share one scale
        shift = moments.mean if normalise else torch.zeros_like(moments.mean)
        module.register_buffer(f"{name}_shift", shift.to(values))
        module.register_buffer(f"{name}_scale", (scale if normalise else torch.ones_like(scale)).to(values))
    return X, y


def make_shared_generator(
    who: str, generator: torch.Generator | int | None, device: torch.device, group: Group | None
) -> torch.Generator | None:
    """Return the source of random numbers; without one, all processes use a seed of the first one."""
    if generator is None and group is not None and group.size > 1:
        seed = torch.randint(1 << 53, (1,))
        group.copy_from_first([seed])
        generator = int(seed)
    return _checks.make_generator(who, generator, device)
