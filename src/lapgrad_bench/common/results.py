"""Results files: one JSON format for everything that is measured.

Every command that measures writes the same envelope (what was run, on which machine, against whom) around
flat rows, one per figure; `kind` says what the rows are about.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from lapgrad import _exceptions
from lapgrad_bench.common.machine import collect_metadata

FORMAT = 1
"""Version of the format. It is stored under the key `_MARK`, which identifies results files."""

Kind = Literal["ops", "sweep", "models", "table1", "table2", "deep_gp_regression"]
"""ops: times of operators. sweep: the same, at random sizes. models: times of criteria of models. table1,
table2: those of the paper. deep_gp_regression: deep and sparse processes on the same splits."""

Row = dict[str, Any]

_MARK = "lapgrad_results"
_KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass
class Results:
    """The figures of one run, and all that is needed to read them later.

    Attributes:
        kind: what the rows are about.
        command: as it was typed.
        complete: False while a run goes on and after it was interrupted; its rows are valid.
        machine: date, load, environment, processor, versions, commit, threads.
        peers: other libraries by name: {"version": ..., "python": ...} or {"missing": why}.
        rows: one flat dict per measured figure. Where a library hung, crashed or failed, its figures are None
            and `error` says why.
        bars: one dict per figure that was to be reached: what, wanted, sense, figure, unit, passed.
        options: what was asked for; --resume compares them.

    Example:
        >>> results = Results("ops", command="lapgrad bench ops")
        >>> results.rows.append({"operator": "potrf", "median_s": 0.25})
        >>> results.as_dict()["rows"]
        [{'operator': 'potrf', 'median_s': 0.25}]
    """

    kind: Kind
    command: str = ""
    complete: bool = False
    machine: dict[str, Any] = field(default_factory=collect_metadata)
    peers: dict[str, dict[str, Any]] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    bars: list[dict[str, Any]] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the content of the file."""
        return {_MARK: FORMAT, **vars(self)}

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the file atomically, and create its folder; figures that are not finite become null.

        The text is written to a temporary file in the same folder, which is then renamed. So a reader never
        sees half a file, even if this process is killed.
        """
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        text = (
            json.dumps(_replace_non_finite(self.as_dict()), indent=1, ensure_ascii=False, allow_nan=False)
            + "\n"
        )
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(name, _choose_permissions(target))
            os.replace(name, target)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):  # Ctrl-C may come just after the file was renamed.
                os.unlink(name)
            raise

    @classmethod
    def load(cls, path: str | os.PathLike[str], kind: Kind | None = None) -> Results:
        """Return the results in a file; `kind` is the kind that they must have, if given.

        Raises:
            FileNotFoundError: There is no such file.
            FileFormatError: It is not JSON, not a results file, of another kind, or of a newer format.
        """
        source = Path(path)
        if not source.is_file():
            raise FileNotFoundError(f"{source}: there is no such file")
        try:
            content = json.loads(source.read_text(encoding="utf-8"))
        except ValueError as error:
            raise _exceptions.FileFormatError(f"{source} is not JSON: {error}") from error
        if not isinstance(content, dict) or not isinstance(content.get(_MARK), int):
            raise _exceptions.FileFormatError(
                f"{source} is not a results file of lapgrad: it has no {_MARK!r}. Files from before this "
                "format have to be measured again"
            )
        if content[_MARK] > FORMAT:
            raise _exceptions.FileFormatError(
                f"{source} is a results file of format {content[_MARK]}, and this lapgrad knows formats up "
                f"to {FORMAT}: a newer lapgrad wrote it"
            )
        found = content.get("kind")
        if found not in _KINDS:
            raise _exceptions.FileFormatError(f"{source} holds results of kind {found!r}; known are {_KINDS}")
        if kind is not None and found != kind:
            raise _exceptions.FileFormatError(
                f"{source} holds results of kind {found!r}; {kind!r} was wanted"
            )
        _check_types(source, content)
        names = ("kind", "command", "complete", "machine", "peers", "rows", "bars", "options")
        return cls(**{name: content[name] for name in names if name in content})


def _check_types(source: Path, content: dict[str, Any]) -> None:
    wanted = {"command": str, "complete": bool, "rows": list, "bars": list}
    wanted |= dict.fromkeys(("machine", "peers", "options"), dict)
    for name, kind in wanted.items():
        if name in content and not isinstance(content[name], kind):
            seen = type(content[name]).__name__
            raise _exceptions.FileFormatError(f"{source}: {name!r} is a {seen}; a {kind.__name__} was wanted")
    for name in ("machine", "rows"):
        if name not in content:
            raise _exceptions.FileFormatError(f"{source} has no {name!r}")
    if not all(isinstance(row, dict) for row in content["rows"]):
        raise _exceptions.FileFormatError(f"{source}: every row has to be an object")


def _choose_permissions(target: Path) -> int:
    """Return the permissions of the file that is replaced, or those that a new file gets.

    A temporary file has fewer: only its owner can read it.
    """
    if target.exists():
        return target.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def _replace_non_finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _replace_non_finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_replace_non_finite(inner) for inner in value]
    return value
