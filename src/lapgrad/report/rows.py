"""Rows of results files as typed records. A row that lacks a field is named, with its file."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lapgrad._errors import FileFormatError

OURS = "lapgrad"
"""The library the others are compared with."""


@dataclass(frozen=True)
class Timing:
    """Seconds per call: median and quartiles of the samples."""

    median: float
    low: float
    high: float
    samples: int | None

    @property
    def spread(self) -> float:
        """Half the distance of the quartiles, as a part of the median."""
        return 0.5 * (self.high - self.low) / self.median

    def overlaps(self, other: Timing) -> bool:
        """Whether the quartiles of both reach into each other."""
        return self.low <= other.high and other.low <= self.high


@dataclass(frozen=True)
class Case:
    """What was timed; libraries are compared on equal cases only.

    Attributes:
        subject: the operator or the model.
        sizes: its shape, or its sizes by name, in their order.
        phase: of an operator: forward, backward or step.
    """

    subject: str
    sizes: tuple[tuple[str, float], ...]
    dtype: str
    device: str
    threads: int
    phase: str = ""
    variant: str = ""

    @property
    def extent(self) -> str:
        """The sizes as text."""
        if any(name for name, _ in self.sizes):
            return ", ".join(f"{name} = {size:,.10g}" for name, size in self.sizes)
        return shape_text(self.shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes without their names."""
        return tuple(int(size) for _, size in self.sizes)

    @property
    def square(self) -> int | None:
        """n of a single n × n matrix, else None."""
        shape = self.shape
        return shape[0] if len(shape) == 2 and shape[0] == shape[1] else None

    def __str__(self) -> str:
        parts = (self.subject, self.extent, self.dtype, self.phase, self.variant)
        return " ".join(part for part in parts if part)


def shape_text(sizes: tuple[int, ...]) -> str:
    """As the commands print it: one number for a square matrix.

    Example:
        >>> shape_text((64, 64)), shape_text((1000, 8, 8)), shape_text((512, 4096))
        ('64', '1000×8×8', '512×4096')
    """
    if len(sizes) == 2 and sizes[0] == sizes[1]:
        return str(sizes[0])
    return "×".join(map(str, sizes))


@dataclass(frozen=True)
class Timed:
    """One library on one case (kinds ops and models).

    Attributes:
        timing: None where the library failed; `failure` says why.
        flops, moved: of the whole call, for rates: operations, and bytes that are read or written.
        gemm_fraction: of the rate of a matrix product in the same run.
        extra_bytes: peak memory beyond what was there before.
        value: the criterion, of a model.
    """

    case: Case
    library: str
    timing: Timing | None
    failure: str = ""
    flops: float | None = None
    moved: float | None = None
    gemm_fraction: float | None = None
    extra_bytes: float | None = None
    value: float | None = None


@dataclass(frozen=True)
class Fold:
    """A model learned on one split of one data set (kinds table1 and deep_gp_regression)."""

    dataset: str
    inducing: int
    fold: int | None
    seed: int | None
    optimizer: str
    steps: int | None
    rmse: float | None
    tll: float | None
    seconds: float | None
    seconds_per_step: float | None
    device: str
    dtype: str
    model: str = ""


@dataclass(frozen=True)
class Learned:
    """A moment of learning a deep Gaussian process (kind table2): a value of the bound, or of the test."""

    arch: str
    step: float | None
    epoch: float | None
    seconds: float | None
    elbo: float | None
    test_ll: float | None
    standard_error: float | None
    samples: int | None
    device: str


Row = Timed | Fold | Learned


def parse(kind: str, rows: Sequence[Mapping[str, Any]], where: str) -> tuple[Row, ...]:
    """Records of one kind of results.

    Args:
        kind: ops, models, table1, table2 or deep_gp_regression.
        rows: as stored.
        where: the file, for messages.

    Raises:
        FileFormatError: A field is missing or of another type, or the kind has no part in the report.

    Example:
        >>> fold = {"dataset": "power", "inducing": 50, "rmse": 3.9, "tll": -2.8}
        >>> parse("table1", [fold], "t.json")[0].rmse
        3.9
        >>> parse("ops", [{"operator": "potrf"}], "x.json")
        Traceback (most recent call last):
        lapgrad._errors.FileFormatError: x.json, row 1: 'shape' is missing
    """
    if kind not in _MAKERS:
        raise FileFormatError(
            f"{where} holds results of kind {kind!r}; the report shows {', '.join(_MAKERS)}"
        )
    return tuple(_MAKERS[kind](_Fields(row, f"{where}, row {i}")) for i, row in enumerate(rows, 1))


@dataclass(frozen=True)
class _Fields:
    row: Mapping[str, Any]
    where: str

    def text(self, name: str, default: str | None = None) -> str:
        value = self.row.get(name)
        if value is None and default is not None:
            return default
        self._check(name, value, str, "a text")
        return str(value)

    def arch(self) -> str:
        """Widths of layers: a text, or a list of numbers."""
        value = self.row.get("arch")
        self._check("arch", value, (str, int, list), "widths of layers")
        return "-".join(map(str, value)) if isinstance(value, list) else str(value)

    def number(self, name: str) -> float:
        value = self.row.get(name)
        self._check(name, value, (int, float), "a number")
        return float(self.row[name])

    def maybe(self, name: str) -> float | None:
        """A number, or None where it is missing, null or not finite."""
        if self.row.get(name) is None:
            return None
        value = self.number(name)
        return value if math.isfinite(value) else None

    def whole(self, name: str) -> int | None:
        value = self.maybe(name)
        return None if value is None else int(value)

    def sizes(self, name: str) -> tuple[tuple[str, float], ...]:
        """A list of sizes, or sizes by name. Texts in a case are no sizes: see `variant`."""
        value = self.row.get(name)
        self._check(name, value, (list, tuple, dict), "sizes")
        pairs = list(value.items()) if isinstance(value, dict) else [("", size) for size in value or ()]
        numbers = [(str(key), size) for key, size in pairs if not isinstance(size, str)]
        for _, size in numbers:
            self._check(name, size, (int, float), "a list of numbers")
        return tuple((key, float(size)) for key, size in numbers)

    def variant(self, name: str) -> str:
        """What a case is, beside its sizes: {"kernel": "rbf"}."""
        value = self.row.get(name)
        pairs = value.items() if isinstance(value, dict) else ()
        return ", ".join(f"{key} {text}" for key, text in pairs if isinstance(text, str))

    def timing(self) -> Timing | None:
        median = self.maybe("median_s")
        if median is None:
            return None
        if median <= 0:
            raise FileFormatError(f"{self.where}: 'median_s' is {median:g}; a positive number was wanted")
        low, high = self.maybe("low_s"), self.maybe("high_s")
        return Timing(
            median,
            median if low is None else low,
            median if high is None else high,
            self.whole("samples"),
        )

    def failure(self) -> str:
        """Why there is no time."""
        for name in ("error", "failure", "failed", "missing"):
            if self.row.get(name):
                return str(self.row[name])
        return ""

    def _check(self, name: str, value: Any, kinds: type | tuple[type, ...], wanted: str) -> None:
        if name not in self.row:
            raise FileFormatError(f"{self.where}: {name!r} is missing")
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise FileFormatError(f"{self.where}: {name!r} is {value!r:.40}; {wanted} was wanted")


def _operator(fields: _Fields) -> Timed:
    sizes = fields.sizes("shape")
    if not all(size == int(size) for _, size in sizes):
        raise FileFormatError(
            f"{fields.where}: 'shape' is {fields.row['shape']!r:.40}; whole numbers were wanted"
        )
    case = Case(
        subject=fields.text("operator"),
        sizes=sizes,
        dtype=fields.text("dtype"),
        device=fields.text("device"),
        threads=int(fields.number("threads")),
        phase=fields.text("phase"),
    )
    return _timed(fields, case)


def _model(fields: _Fields) -> Timed:
    case = Case(
        subject=fields.text("model"),
        sizes=fields.sizes("case"),
        dtype=fields.text("dtype"),
        device=fields.text("device"),
        threads=int(fields.number("threads")),
        variant=fields.variant("case"),
    )
    return _timed(fields, case)


def _timed(fields: _Fields, case: Case) -> Timed:
    return Timed(
        case,
        fields.text("library"),
        fields.timing(),
        fields.failure(),
        fields.maybe("flops"),
        fields.maybe("bytes"),
        fields.maybe("gemm_fraction"),
        fields.maybe("extra_bytes"),
        fields.maybe("value"),
    )


def _fold(fields: _Fields) -> Fold:
    return Fold(
        dataset=fields.text("dataset"),
        inducing=int(fields.number("inducing")),
        fold=fields.whole("fold"),
        seed=fields.whole("seed"),
        optimizer=fields.text("optimizer", ""),
        steps=fields.whole("steps"),
        rmse=fields.maybe("rmse"),
        tll=fields.maybe("tll"),
        seconds=fields.maybe("seconds"),
        seconds_per_step=fields.maybe("seconds_per_step"),
        device=fields.text("device", ""),
        dtype=fields.text("dtype", ""),
        model=fields.text("model", ""),
    )


def _learned(fields: _Fields) -> Learned:
    return Learned(
        arch=fields.arch(),
        step=fields.maybe("step"),
        epoch=fields.maybe("epoch"),
        seconds=fields.maybe("seconds"),
        elbo=fields.maybe("elbo"),
        test_ll=fields.maybe("test_ll"),
        standard_error=fields.maybe("test_ll_standard_error"),
        samples=fields.whole("samples"),
        device=fields.text("device", ""),
    )


_MAKERS: dict[str, Callable[[_Fields], Row]] = {
    "ops": _operator,
    "models": _model,
    "table1": _fold,
    "table2": _learned,
    "deep_gp_regression": _fold,
}
