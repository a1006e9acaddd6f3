"""Versions, CPU, BLAS, threads and CUDA of this environment, for `lapgrad info` and results files."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

Facts = dict[str, dict[str, Any]]
"""Section -> name -> value; every value can be written as JSON."""


def collect() -> Facts:
    """Return all facts by section. It never fails: where a fact is not available, its value says why.

    Example:
        >>> sorted(collect())
        ['accelerate', 'blas', 'core', 'cpu', 'cuda', 'lapgrad', 'torch']
    """
    return {
        "lapgrad": {
            "version": _find_version("lapgrad"),
            "commit": _find_commit(),
            "python": platform.python_version(),
            "platform": platform.platform(),
        },
        "torch": {
            "version": torch.__version__,
            "threads": torch.get_num_threads(),
            "numpy": _find_version("numpy"),
            "scipy": _find_version("scipy"),
        },
        "cpu": _describe_cpu(),
        "core": _describe("lapgrad._kernels.cpu"),
        "blas": _describe("lapgrad._blas"),
        "cuda": _describe_cuda(),
        "accelerate": _describe("lapgrad.accelerate.registry"),
    }


def format_summary() -> str:
    """Return in a few lines what is in use: versions, processor, kernels, BLAS, CUDA, acceleration."""
    facts = collect()
    lapgrad, software, cpu = facts["lapgrad"], facts["torch"], facts["cpu"]
    commit = f", commit {lapgrad['commit']}" if lapgrad["commit"] else ""
    cores = _count(cpu["cores"], "core")
    if cpu["cores_allowed"] != cpu["cores"]:
        cores = f"{cpu['cores_allowed']} of {cores}"
    lines = {
        "lapgrad": f"{lapgrad['version']}{commit}",
        "Python": f"{lapgrad['python']} on {platform.system()} {platform.machine()}",
        "torch": f"{software['version']}, {_count(software['threads'], 'thread')}",
        "CPU": f"{cpu['model']}, {cores}",
        "kernels": _summarise_core(facts["core"]),
        "BLAS": _summarise_blas(facts["blas"]),
        "CUDA": _summarise_cuda(facts["cuda"]),
        "accelerate": _summarise_acceleration(),
    }
    shown = [f"{name:<12}{text}" for name, text in lines.items()]
    return "\n".join([*shown, "", "All details, and which calls accelerate() takes: lapgrad info --verbose"])


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _summarise_core(facts: dict[str, Any]) -> str:
    if facts.get("core"):
        return f"compiled core, instruction set {facts.get('isa')}"
    why = facts.get("reason") or facts.get("state") or "switched off or not installed"
    return f"torch.linalg, slower: no compiled core ({why})"


def _summarise_blas(facts: dict[str, Any]) -> str:
    if facts.get("library"):
        return f"that of {facts.get('provider')} ({Path(str(facts['library'])).name})"
    return str(facts.get("state") or "none found")


def _summarise_cuda(facts: dict[str, Any]) -> str:
    if not facts["available"]:
        return "torch sees no GPU"
    return f"{', '.join(facts['devices'])}; kernels {facts['kernels']}"


def _summarise_acceleration() -> str:
    from lapgrad.accelerate.choices import PROCESS

    names = sorted(PROCESS.current.names) if PROCESS.current else []
    return f"on: {', '.join(names)}" if names else "off (lapgrad.accelerate(), or LAPGRAD_ACCELERATE=1)"


def format_text() -> str:
    """Return all facts as aligned lines of text, as wide as the terminal."""
    lines: list[str] = []
    for section, facts in collect().items():
        lines.append(section)
        format_facts = _format_thresholds if section == "accelerate" else _format_facts
        lines.extend(format_facts(facts, shutil.get_terminal_size().columns))
    return "\n".join(lines)


def _format_facts(facts: dict[str, Any], width: int) -> Iterator[str]:
    for name, value in facts.items():
        yield from _wrap(f"  {name.replace('_', ' '):<18} ", _format_value(value), width)


def _format_thresholds(facts: dict[str, str], width: int) -> Iterator[str]:
    """Yield lines that say which calls ``accelerate()`` takes, for each operator and dtype."""
    text = 'Orders of matrices: how many of them a call needs to be taken; "gradient": if one is recorded.'
    yield from _wrap("  ", text, width)
    for name, calls in facts.items():
        yield f"  {name}"
        for call in calls.split("; "):
            kind, _, orders = call.partition(" ")
            yield from _wrap(f"    {kind:<9}", orders, width)


def _wrap(label: str, text: str, width: int) -> list[str]:
    """Return a label with a text beside it, as lines; words longer than a line stay whole."""
    indent = " " * len(label)
    lines = textwrap.wrap(
        text,
        max(width, len(label) + 20),
        initial_indent=label,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return lines or [label.rstrip()]


def _format_value(value: Any) -> str:
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
    """Return what `describe()` of a module returns, or why it cannot be called."""
    try:
        facts = importlib.import_module(module).describe()
    except (ImportError, AttributeError) as reason:
        return {"state": f"not available ({reason})"}
    return dict(facts)


def _describe_cpu() -> dict[str, Any]:
    cpuinfo = _read_file("/proc/cpuinfo")
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


def _describe_cuda() -> dict[str, Any]:
    from lapgrad._kernels import cuda as kernels
    from lapgrad._kernels.cuda.runtime.compiler import get_cache_directory

    missing = kernels.list_missing_packages()
    state = "switched off (LAPGRAD_CUDA)" if kernels.is_switched_off() else "in use for CUDA tensors"
    facts: dict[str, Any] = {
        "available": torch.cuda.is_available(),
        "kernels": f"not in use: {' and '.join(missing)} missing" if missing else state,
        "built_for": torch.version.cuda,
        "nvmath": _find_version("nvmath-python"),
        "cuda_core": _find_version("cuda-core"),
        "cuda_bindings": _find_version("cuda-bindings"),
        "cache": str(get_cache_directory()),
    }
    if torch.cuda.is_available():
        facts["devices"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return facts


def _find_commit() -> str | None:
    """Return the git commit of the source tree that this package is imported from; None for a wheel."""
    here = Path(__file__).resolve().parent
    if not (here.parents[1] / "csrc").is_dir():
        return None
    command = ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip() or None


def _find_version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _read_file(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
