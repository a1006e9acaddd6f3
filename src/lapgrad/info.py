"""What lapgrad runs on: versions, CPU, BLAS, threads, CUDA. `lapgrad info` prints it, benchmarks store it."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

import torch

Facts = dict[str, dict[str, Any]]
"""Section -> name -> value; every value can be written as JSON."""


def collect() -> Facts:
    """All facts, by section. Nothing here fails: what cannot be found out is said in words.

    Example:
        >>> sorted(collect())
        ['accelerate', 'blas', 'core', 'cpu', 'cuda', 'lapgrad', 'torch']
    """
    return {
        "lapgrad": {
            "version": _version("lapgrad"),
            "commit": _source_commit(),
            "python": platform.python_version(),
            "platform": platform.platform(),
        },
        "torch": {
            "version": torch.__version__,
            "threads": torch.get_num_threads(),
            "numpy": _version("numpy"),
            "scipy": _version("scipy"),
        },
        "cpu": _cpu(),
        "core": _describe("lapgrad._kernels.cpu"),
        "blas": _describe("lapgrad._blas"),
        "cuda": _cuda(),
        "accelerate": _describe("lapgrad.accelerate.registry"),
    }


def text() -> str:
    """The facts as aligned lines of text."""
    lines: list[str] = []
    for section, facts in collect().items():
        lines.append(section)
        for name, value in facts.items():
            shown = _shown(value)
            if "\n" in shown:
                lines.append(f"  {name}")
                lines.extend(f"    {line}" for line in shown.splitlines())
            else:
                lines.append(f"  {name.replace('_', ' '):<18} {shown}")
    return "\n".join(lines)


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value)) or "-"
    if isinstance(value, dict):
        return ", ".join(f"{k}={v}" for k, v in value.items()) or "-"
    return str(value)


def _describe(module: str) -> dict[str, Any]:
    """The `describe()` of a lower layer; the reason where there is none."""
    try:
        facts = importlib.import_module(module).describe()
    except (ImportError, AttributeError) as reason:
        return {"state": f"not available ({reason})"}
    return dict(facts)


def _cpu() -> dict[str, Any]:
    cpuinfo = _read("/proc/cpuinfo")
    model = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    flags = re.search(r"^flags\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    seen = set(flags.group(1).split()) if flags else set()
    of_interest = ("sse4_2", "avx", "fma", "avx2", "avx512f", "avx512dq", "avx512bw", "avx512vl")
    return {
        "model": model.group(1).strip() if model else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "cores_allowed": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "features": [name for name in of_interest if name in seen],
    }


def _cuda() -> dict[str, Any]:
    from lapgrad._kernels import cuda as kernels
    from lapgrad._kernels.cuda.runtime.compiler import get_cache_directory

    missing = kernels.missing_packages()
    state = "switched off (LAPGRAD_CUDA)" if kernels.switched_off() else "in use for CUDA tensors"
    facts: dict[str, Any] = {
        "available": torch.cuda.is_available(),
        "kernels": f"not in use: {' and '.join(missing)} missing" if missing else state,
        "built_for": torch.version.cuda,
        "nvmath": _version("nvmath-python"),
        "cuda_core": _version("cuda-core"),
        "cuda_bindings": _version("cuda-bindings"),
        "cache": str(get_cache_directory()),
    }
    if torch.cuda.is_available():
        facts["devices"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return facts


def _source_commit() -> str | None:
    """The git commit of the source tree this package is imported from; None for an installed wheel."""
    here = Path(__file__).resolve().parent
    if not (here.parents[1] / "csrc").is_dir():
        return None
    command = ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip() or None


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
