"""Data files of a few rows in the format of the real ones."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
from pathlib import Path

import pytest
import torch

from lapgrad_bench import datasets


def write(folder: Path, table: datasets.Table, rows: int = 40) -> Path:
    """Return a table with a smooth function of its inputs; some columns are constant, as in *naval*."""
    generator = torch.Generator().manual_seed(len(table.inputs))
    X = torch.randn(rows, len(table.inputs), dtype=torch.float64, generator=generator)
    if table is datasets.NAVAL:
        X[:, 8], X[:, 11], X[:, 6] = 288.0, 0.998, X[:, 5]
    targets = [torch.sin(X[:, 0] + shift) + 3.0 for shift in range(len(table.targets))]
    values = torch.cat([X, torch.stack(targets, 1)], 1).tolist()
    lines = [",".join(table.columns), *(",".join(map(repr, row)) for row in values)]
    path = folder / table.file
    path.write_bytes(gzip.compress("\n".join(lines).encode(), mtime=0))
    return path


def write_all(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write all tables, and patch the checksums so that the package accepts them."""
    for name, (table, target) in list(datasets.TASKS.items()):
        digest = hashlib.sha256(write(folder, table).read_bytes()).hexdigest()
        replaced = dataclasses.replace(table, sha256=digest)
        monkeypatch.setitem(datasets.TASKS, name, (replaced, target))
