"""Rows of results files as typed records, checked; messages name the file, the row and the field."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lapgrad._exceptions import FileFormatError
from lapgrad_bench.report.characters import replace_forbidden

OURS = "lapgrad"
"""The library that the others are compared with."""


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
        """Return whether the ranges between the quartiles of both have a common point."""
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
        return format_shape(self.shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes as numbers."""
        return tuple(int(size) for _, size in self.sizes)

    @property
    def square(self) -> int | None:
        """n of a single n × n matrix, else None."""
        shape = self.shape
        return shape[0] if len(shape) == 2 and shape[0] == shape[1] else None

    def count_elements(self) -> float:
        """Return the product of all sizes, by which cases are sorted."""
        return math.prod(size for _, size in self.sizes)

    def __str__(self) -> str:
        parts = (self.subject, self.extent, self.dtype, self.phase, self.variant)
        return " ".join(part for part in parts if part)


def format_shape(sizes: tuple[int, ...]) -> str:
    """Return a shape as the commands print it: one number for a square matrix.

    Example:
        >>> format_shape((64, 64)), format_shape((1000, 8, 8)), format_shape((512, 4096))
        ('64', '1000×8×8', '512×4096')
    """
    if len(sizes) == 2 and sizes[0] == sizes[1]:
        return str(sizes[0])
    return "×".join(map(str, sizes))


@dataclass(frozen=True)
class Measurement:
    """The time and memory of one library on one case (kinds ops, sweep and models).

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

    def as_row(self) -> dict[str, Any]:
        """Return the measurement in the form that the plots of `lapgrad bench` read; it must have a time."""
        case, timing = self.case, self.timing
        assert timing is not None
        return {
            "operator": case.subject,
            "model": case.subject,
            "shape": case.shape,
            "case": dict(case.sizes),
            "dtype": case.dtype,
            "device": case.device,
            "threads": case.threads,
            "phase": case.phase,
            "library": self.library,
            "median_s": timing.median,
            "low_s": timing.low,
            "high_s": timing.high,
            "flops": self.flops,
            "extra_bytes": self.extra_bytes,
        }


@dataclass(frozen=True)
class FoldResult:
    """The quality of a model on one split of one data set (kinds table1 and deep_gp_regression)."""

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
class TrainingRecord:
    """One step of training a deep Gaussian process (kind table2): its bound, or its test log likelihood."""

    arch: str
    step: float | None
    epoch: float | None
    seconds: float | None
    elbo: float | None
    test_ll: float | None
    test_ll_standard_error: float | None
    samples: int | None
    device: str


Row = Measurement | FoldResult | TrainingRecord


def parse_rows(kind: str, rows: Sequence[Mapping[str, Any]], where: str) -> tuple[Row, ...]:
    """Return the records of one kind of results.

    Args:
        kind: ops, sweep, models, table1, table2 or deep_gp_regression.
        rows: as stored.
        where: the file, for messages.

    Raises:
        FileFormatError: A field is missing or of another type, or the kind has no part in the report.

    Example:
        >>> fold = {"dataset": "power", "inducing": 50, "rmse": 3.9, "tll": -2.8}
        >>> parse_rows("table1", [fold], "t.json")[0].rmse
        3.9
        >>> parse_rows("ops", [{"operator": "potrf"}], "x.json")
        Traceback (most recent call last):
        lapgrad._exceptions.FileFormatError: x.json, row 1: 'shape' is missing
    """
    if kind not in _MAKERS:
        raise FileFormatError(
            f"{where} holds results of kind {kind!r}; the report shows {', '.join(_MAKERS)}"
        )
    return tuple(
        _MAKERS[kind](_Fields(replace_forbidden(row), f"{where}, row {i}")) for i, row in enumerate(rows, 1)
    )


@dataclass(frozen=True)
class _Fields:
    """One stored row, read field by field."""

    row: Mapping[str, Any]
    where: str

    def read_text(self, name: str, default: str | None = None) -> str:
        value = self.row.get(name)
        if value is None and default is not None:
            return default
        self._check(name, value, str, "a text")
        return str(value)

    def read_arch(self) -> str:
        """Return the widths of layers, stored as a text or as a list of numbers, joined by hyphens."""
        value = self.row.get("arch")
        self._check("arch", value, (str, int, list), "widths of layers")
        return "-".join(map(str, value)) if isinstance(value, list) else str(value)

    def read_number(self, name: str) -> float:
        value = self.row.get(name)
        self._check(name, value, (int, float), "a number")
        return float(self.row[name])

    def read_optional(self, name: str) -> float | None:
        """Return a number; None where it is missing, null or not finite."""
        if self.row.get(name) is None:
            return None
        value = self.read_number(name)
        return value if math.isfinite(value) else None

    def read_whole(self, name: str) -> int | None:
        value = self.read_optional(name)
        return None if value is None else int(value)

    def read_sizes(self, name: str) -> tuple[tuple[str, float], ...]:
        """Return sizes with their names; a plain list has empty names. Texts are left out."""
        value = self.row.get(name)
        self._check(name, value, (list, tuple, dict), "sizes")
        pairs = list(value.items()) if isinstance(value, dict) else [("", size) for size in value or ()]
        numbers = [(str(key), size) for key, size in pairs if not isinstance(size, str)]
        for _, size in numbers:
            self._check(name, size, (int, float), "a list of numbers")
        return tuple((key, float(size)) for key, size in numbers)

    def read_variant(self, name: str) -> str:
        """Return what a case is beside its sizes, e.g. "kernel rbf"."""
        value = self.row.get(name)
        pairs = value.items() if isinstance(value, dict) else ()
        return ", ".join(f"{key} {text}" for key, text in pairs if isinstance(text, str))

    def read_timing(self) -> Timing | None:
        median = self.read_optional("median_s")
        if median is None:
            return None
        if median <= 0:
            raise FileFormatError(f"{self.where}: 'median_s' is {median:g}; a positive number was wanted")
        low, high = self.read_optional("low_s"), self.read_optional("high_s")
        return Timing(
            median,
            median if low is None else low,
            median if high is None else high,
            self.read_whole("samples"),
        )

    def read_failure(self) -> str:
        """Return the reason why there is no time; empty where none is stored."""
        for name in ("error", "failure", "failed", "missing"):
            if self.row.get(name):
                return str(self.row[name])
        return ""

    def _check(self, name: str, value: Any, kinds: type | tuple[type, ...], wanted: str) -> None:
        if name not in self.row:
            raise FileFormatError(f"{self.where}: {name!r} is missing")
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise FileFormatError(f"{self.where}: {name!r} is {value!r:.40}; {wanted} was wanted")


def _make_operator_row(fields: _Fields) -> Measurement:
    sizes = fields.read_sizes("shape")
    if not all(size == int(size) for _, size in sizes):
        raise FileFormatError(
            f"{fields.where}: 'shape' is {fields.row['shape']!r:.40}; whole numbers were wanted"
        )
    case = Case(
        subject=fields.read_text("operator"),
        sizes=sizes,
        dtype=fields.read_text("dtype"),
        device=fields.read_text("device"),
        threads=int(fields.read_number("threads")),
        phase=fields.read_text("phase"),
    )
    return _make_measurement(fields, case)


def _make_model_row(fields: _Fields) -> Measurement:
    case = Case(
        subject=fields.read_text("model"),
        sizes=fields.read_sizes("case"),
        dtype=fields.read_text("dtype"),
        device=fields.read_text("device"),
        threads=int(fields.read_number("threads")),
        variant=fields.read_variant("case"),
    )
    return _make_measurement(fields, case)


def _make_measurement(fields: _Fields, case: Case) -> Measurement:
    return Measurement(
        case,
        fields.read_text("library"),
        fields.read_timing(),
        fields.read_failure(),
        fields.read_optional("flops"),
        fields.read_optional("bytes"),
        fields.read_optional("gemm_fraction"),
        fields.read_optional("extra_bytes"),
        fields.read_optional("value"),
    )


def _make_fold(fields: _Fields) -> FoldResult:
    return FoldResult(
        dataset=fields.read_text("dataset"),
        inducing=int(fields.read_number("inducing")),
        fold=fields.read_whole("fold"),
        seed=fields.read_whole("seed"),
        optimizer=fields.read_text("optimizer", ""),
        steps=fields.read_whole("steps"),
        rmse=fields.read_optional("rmse"),
        tll=fields.read_optional("tll"),
        seconds=fields.read_optional("seconds"),
        seconds_per_step=fields.read_optional("seconds_per_step"),
        device=fields.read_text("device", ""),
        dtype=fields.read_text("dtype", ""),
        model=fields.read_text("model", ""),
    )


def _make_record(fields: _Fields) -> TrainingRecord:
    return TrainingRecord(
        arch=fields.read_arch(),
        step=fields.read_optional("step"),
        epoch=fields.read_optional("epoch"),
        seconds=fields.read_optional("seconds"),
        elbo=fields.read_optional("elbo"),
        test_ll=fields.read_optional("test_ll"),
        test_ll_standard_error=fields.read_optional("test_ll_standard_error"),
        samples=fields.read_whole("samples"),
        device=fields.read_text("device", ""),
    )


_MAKERS: dict[str, Callable[[_Fields], Row]] = {
    "ops": _make_operator_row,
    "sweep": _make_operator_row,
    "models": _make_model_row,
    "table1": _make_fold,
    "table2": _make_record,
    "deep_gp_regression": _make_fold,
}
