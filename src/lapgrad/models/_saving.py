"""Models in files: data, parameters and a description, and no code.

A file is what ``torch.save`` makes of a dictionary of tensors, text and numbers, and is read with
``weights_only=True``: opening a file from elsewhere runs nothing that is in it.
"""

from __future__ import annotations

import dataclasses
import json
from os import PathLike
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor

import lapgrad
from lapgrad import _errors

FORMAT = 1
_MAGIC = "lapgrad model"


@dataclasses.dataclass(frozen=True)
class Saved:
    """What a file holds.

    Attributes:
        kind: Name of the class of the model.
        config: What its constructor needs besides tensors, as JSON can express it.
        tensors: The ``state_dict``: data and parameters.
        fixed: Names of the parameters that were not to be learned.
        version: The lapgrad that wrote it.
    """

    kind: str
    config: dict[str, Any]
    tensors: dict[str, Tensor]
    fixed: tuple[str, ...]
    version: str = ""


def write(path: str | PathLike[str], saved: Saved) -> None:
    """Write a file; one that is there is replaced, and only when the new one is complete."""
    content = {
        "what": _MAGIC,
        "format": FORMAT,
        "version": lapgrad.__version__,
        "kind": saved.kind,
        "config": json.dumps(saved.config),
        "tensors": {name: tensor.detach() for name, tensor in saved.tensors.items()},
        "fixed": list(saved.fixed),
    }
    path = Path(path)
    partial = path.with_name(path.name + ".partial")
    try:
        torch.save(content, partial)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def read(path: str | PathLike[str], device: torch.device | str | None = None) -> Saved:
    """Read a file.

    Args:
        path: The file.
        device: Where the tensors go; None: to the device they were saved from.

    Raises:
        FileFormatError: It is no file of a model, or of a newer format than this lapgrad knows.
    """
    try:
        content = torch.load(path, map_location=device, weights_only=True)
    except (UnpicklingError, EOFError, RuntimeError, ValueError, KeyError) as error:
        if isinstance(error, RuntimeError) and "CUDA" in str(error):
            raise _errors.DeviceError(
                f"load: {path} was saved from a CUDA device, and there is none here: pass device='cpu'."
            ) from error
        raise _errors.FileFormatError(f"load: {path} is not a file of a lapgrad model: {error}") from error
    if not isinstance(content, dict) or content.get("what") != _MAGIC:
        raise _errors.FileFormatError(f"load: {path} is not a file of a lapgrad model.")
    if content["format"] > FORMAT:
        raise _errors.FileFormatError(
            f"load: {path} has format {content['format']} (written by lapgrad {content['version']}); this "
            f"lapgrad {lapgrad.__version__} reads up to {FORMAT}."
        )
    return Saved(
        content["kind"],
        json.loads(content["config"]),
        content["tensors"],
        tuple(content["fixed"]),
        content["version"],
    )
