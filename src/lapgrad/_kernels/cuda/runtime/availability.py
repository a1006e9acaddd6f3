"""Whether NVIDIA's Python packages are there, and with them kernels of lapgrad's own for CUDA tensors."""

from __future__ import annotations

import importlib.util
import os

from lapgrad._kernels import native

_PACKAGES = {"nvmath": "nvmath-python", "cuda.core": "cuda-core"}


def is_switched_off() -> bool:
    """Whether the environment asks for the kernels in plain PyTorch: LAPGRAD_CUDA=off."""
    return os.environ.get("LAPGRAD_CUDA", "").lower() in ("off", "0", "no", "false")


def list_missing_packages() -> list[str]:
    """What to install before CUDA tensors run on lapgrad's own kernels; empty when nothing is missing."""
    core = [] if native.is_available() else ["the compiled core"]
    return core + [package for module, package in _PACKAGES.items() if not _is_installed(module)]


def is_available() -> bool:
    """Whether CUDA tensors can run on lapgrad's own kernels. Asks for packages, not for a device."""
    return not is_switched_off() and not list_missing_packages()


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package `cuda` itself
        return False
