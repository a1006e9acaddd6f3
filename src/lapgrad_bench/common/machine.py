"""The machine and the moment, to be stored beside every figure."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
from typing import Any

import torch

from lapgrad import info

_PREFIXES = ("OMP_", "MKL_", "LAPGRAD_")
"""Environment variables that can change a time."""

_PACKAGES = ("torch", "numpy", "scipy", "gpytorch", "GPy", "matplotlib")


def collect_metadata() -> dict[str, Any]:
    """Date, load, environment, versions, commit, threads, and the facts of `lapgrad info`.

    Example:
        >>> sorted(set(collect_metadata()) - set(info.collect()))
        ['commit', 'date', 'environment', 'load_average', 'threads', 'versions']
    """
    facts = info.collect()
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "load_average": list(os.getloadavg()),
        "environment": {name: os.environ[name] for name in sorted(os.environ) if name.startswith(_PREFIXES)},
        "threads": torch.get_num_threads(),
        "versions": _versions(),
        # Of the sources, as `git describe` says it: with -dirty where files were changed since.
        "commit": facts["lapgrad"]["commit"],
        **facts,
    }


def _versions() -> dict[str, str]:
    found = {}
    for name in ("lapgrad", *_PACKAGES):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
