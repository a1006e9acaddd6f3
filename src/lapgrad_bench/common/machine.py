"""Facts about the machine and the moment, which results files store beside the figures."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
from typing import Any

import torch

from lapgrad import info

_PREFIXES = ("OMP_", "MKL_", "LAPGRAD_")
"""Prefixes of environment variables that can change times."""

_PACKAGES = ("torch", "numpy", "scipy", "gpytorch", "GPy", "matplotlib")


def collect_metadata() -> dict[str, Any]:
    """Return date, load, environment, versions, commit, threads, and the facts of `lapgrad info`.

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
        "versions": _find_versions(),
        # The output of `git describe` in the source tree; it ends in -dirty if files were changed.
        "commit": facts["lapgrad"]["commit"],
        **facts,
    }


def _find_versions() -> dict[str, str]:
    found = {}
    for name in ("lapgrad", *_PACKAGES):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
