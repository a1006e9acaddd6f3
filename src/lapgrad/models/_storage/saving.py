"""Models in files: data, parameters and a description, and no code.

A file is an archive (``archive.py``) of tensors, text and numbers. Opening a file of unknown origin does not
run any code. The content is checked before it becomes part of a model: all entries exist and have the right
types, tensors have the dtypes and shapes that the model expects, and numbers are finite.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from os import PathLike
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

import lapgrad
from lapgrad import _exceptions
from lapgrad.models._bounds import Bounds
from lapgrad.models._parameters import Hyperparameter, ParametrisedModule, get_all_bounds, get_priors
from lapgrad.models._storage import archive as _archive
from lapgrad.models._storage.distributions import describe_distribution, make_distribution
from lapgrad.models._storage.entries import BOUNDS, PART, check_entries

#: Format 1 had no checksum. Format 3 has priors and bounds of hyper-parameters, which earlier versions would
#: misread; models without them are written in format 2. All are read.
FORMAT = 3
_FORMAT_WITHOUT_CONSTRAINTS = 2
_CONSTRAINTS = "constraints"
_MAGIC = "lapgrad model"
_WHAT = "a file of a lapgrad model"
#: The entries of a file besides "what" and "format".
_ENTRIES: Mapping[str, type] = {"version": str, "kind": str, "config": str, "tensors": dict, "fixed": list}


@dataclasses.dataclass(frozen=True)
class SavedModel:
    """The content of a file.

    Attributes:
        kind: Name of the class of the model.
        config: The arguments of its constructor that are no tensors, in types that JSON knows.
        tensors: The ``state_dict``: data and parameters.
        fixed: Names of the parameters that are not learned.
        version: The version of lapgrad that wrote the file.
    """

    kind: str
    config: dict[str, Any]
    tensors: dict[str, Tensor]
    fixed: tuple[str, ...]
    version: str = ""


def write_model(path: str | PathLike[str], saved: SavedModel) -> None:
    """Write a model to a file. An existing file is replaced when the new one is complete."""
    content = {
        "what": _MAGIC,
        "format": FORMAT if _CONSTRAINTS in saved.config else _FORMAT_WITHOUT_CONSTRAINTS,
        "version": lapgrad.__version__,
        "kind": saved.kind,
        "config": json.dumps(saved.config),
        "tensors": {name: tensor.detach() for name, tensor in saved.tensors.items()},
        "fixed": list(saved.fixed),
    }
    _archive.write_archive(path, content)


def read_model(path: str | PathLike[str], device: torch.device | str | None = None) -> SavedModel:
    """Read a model from a file.

    Args:
        path: The file.
        device: Where the tensors go; None: to the device they were saved from.

    Raises:
        FileFormatError: The file is damaged, not a file of a model, or of a newer format.
        DeviceError: It was saved from a device that this machine does not have.
    """
    content, sealed = _archive.read_archive(path, _WHAT, device)
    if content.get("what") != _MAGIC:
        raise _exceptions.FileFormatError(f"{path} is not {_WHAT}: its entry 'what' does not say so.")
    found = _get_entry(path, content, "format", int)
    if found > FORMAT:
        raise _exceptions.FileFormatError(
            f"{path} has format {found} (written by lapgrad {content.get('version')}); this lapgrad "
            f"{lapgrad.__version__} reads up to {FORMAT}."
        )
    if found < 1 or sealed != (found > 1):
        raise _exceptions.FileFormatError(
            f"{path} is damaged: it says that it has format {found}, and has {'a' if sealed else 'no'} "
            f"checksum at its end."
        )
    version, kind, config, tensors, fixed = (_get_entry(path, content, *entry) for entry in _ENTRIES.items())
    for name, tensor in tensors.items():
        _check_tensor(path, name, tensor)
    if not all(isinstance(name, str) for name in fixed):
        raise _exceptions.FileFormatError(f"{path} is damaged: the entry 'fixed' has to be a list of names.")
    return SavedModel(kind, _parse_config(path, config), tensors, tuple(fixed), version)


def describe_constraints(model: nn.Module) -> dict[str, Any]:
    """Return priors and bounds of all hyper-parameters as an entry of the description; nothing if there are
    none.

    Raises:
        OptionError: A prior cannot be written.
    """
    found: dict[str, Any] = {}
    for path, module in model.named_modules():
        for name, prior in get_priors(module).items():
            found.setdefault(f"{path}.{name}", {})["prior"] = describe_distribution(prior)
        for name, bounds in get_all_bounds(module).items():
            # JSON has no infinity.
            ends = [None if math.isinf(end) else end for end in (bounds.low, bounds.high)]
            found.setdefault(f"{path}.{name}", {})["bounds"] = [*ends, bounds.is_logarithmic]
    return {_CONSTRAINTS: found} if found else {}


def apply_constraints(model: nn.Module, config: Mapping[str, Any]) -> None:
    """Set the priors and bounds of hyper-parameters that a file describes, without changing stored values.

    Raises:
        FileFormatError: The entry is not what ``describe_constraints`` has written.
    """
    constraints = config.get(_CONSTRAINTS, {})
    check_entries({_CONSTRAINTS: constraints}, {_CONSTRAINTS: PART})
    modules = dict(model.named_modules())
    for place, entry in constraints.items():
        path, _, name = place.rpartition(".")
        if not isinstance(getattr(type(modules.get(path)), name, None), Hyperparameter):
            raise _exceptions.FileFormatError(
                f"the description names {place!r}, which is not a hyper-parameter."
            )
        check_entries({place: entry}, {place: PART})
        if "prior" in entry:
            get_priors(modules[path])[name] = make_distribution(entry["prior"])
        if "bounds" in entry:
            check_entries(entry, {"bounds": BOUNDS}, place)
            low, high, is_logarithmic = entry["bounds"]
            get_all_bounds(modules[path])[name] = Bounds(
                -math.inf if low is None else low, math.inf if high is None else high, bool(is_logarithmic)
            )


def check_fit(model: nn.Module, saved: SavedModel) -> None:
    """Raise if tensors of a file do not have the dtypes and shapes that the model expects.

    ``load_state_dict`` would convert dtypes, and take the first of several numbers for a scalar. Names that
    are missing or unknown are left to it.

    Raises:
        FileFormatError: Names the tensor; the caller adds the name of the file.
    """
    own = _find_own_modules(model)
    wanted = {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
    }
    for name, tensor in saved.tensors.items():
        place = wanted.get(name)
        if place is None or is_lazy(place):
            continue
        if not _can_convert(tensor.dtype, place.dtype, exactly=name.rpartition(".")[0] in own):
            raise _exceptions.FileFormatError(f"{name!r} has dtype {tensor.dtype}; {place.dtype} was wanted.")
        if tensor.shape != place.shape:
            raise _exceptions.FileFormatError(
                f"{name!r} has shape {tuple(tensor.shape)}; {tuple(place.shape)} was wanted."
            )
    for name in saved.fixed:
        if name not in wanted:
            raise _exceptions.FileFormatError(
                f"the entry 'fixed' names {name!r}, and there is no such parameter."
            )


def find_fault(model: nn.Module, tensors: Mapping[str, Tensor]) -> str | None:
    """Return a description of the first value that a model must not have; None: there is none.

    Parameters must be finite. Buffers too, except for NaN in those that ``may_have_nan`` of their class
    names. Scales, by which data are divided, must be positive. Buffers of networks of users are not checked.

    Args:
        model: Has the parameters and buffers.
        tensors: A ``state_dict`` of the model.
    """
    for name, _ in model.named_parameters(remove_duplicate=False):
        if name in tensors and not _is_finite(tensors[name]):
            return f"{name!r} has a value that is not finite."
    for prefix, module in _find_own_modules(model).items():
        allowed = module.may_have_nan if isinstance(module, ParametrisedModule) else frozenset()
        for name, _ in module.named_buffers(recurse=False):
            path = f"{prefix}.{name}" if prefix else name
            if path not in tensors:  # a buffer that is not saved
                continue
            if not _is_finite(tensors[path], or_nan=name in allowed):
                return f"{path!r} has a value that is not finite."
            if name.endswith("scale") and not bool((tensors[path] > 0).all()):
                return f"{path!r} has a value that is not positive."
    return None


def _find_own_modules(model: nn.Module) -> dict[str, nn.Module]:
    """Return the parts of a model, by path, whose classes are lapgrad's or derived from them."""
    return {
        path: module
        for path, module in model.named_modules()
        if isinstance(module, ParametrisedModule) or type(module).__module__.partition(".")[0] == "lapgrad"
    }


def _is_finite(tensor: Tensor, *, or_nan: bool = False) -> bool:
    if is_lazy(tensor) or not tensor.dtype.is_floating_point:
        return True
    return not bool(tensor.isinf().any()) and (or_nan or not bool(tensor.isnan().any()))


def _can_convert(stored: torch.dtype, wanted: torch.dtype, *, exactly: bool) -> bool:
    """Return whether a floating point dtype may be converted to another; ``exactly``: without rounding."""
    if stored == wanted:
        return True
    if not (stored.is_floating_point and wanted.is_floating_point):
        return False
    return not exactly or torch.promote_types(stored, wanted) == wanted


def _get_entry(path: str | PathLike[str], content: Mapping[str, Any], name: str, kind: type) -> Any:
    if name not in content:
        raise _exceptions.FileFormatError(f"{path} is damaged: missing entry {name!r}.")
    value = content[name]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise _exceptions.FileFormatError(
            f"{path} is damaged: the entry {name!r} is of type {type(value).__name__}; "
            f"{kind.__name__} was wanted."
        )
    return value


def _check_tensor(path: str | PathLike[str], name: object, tensor: object) -> None:
    if not isinstance(name, str) or not isinstance(tensor, Tensor):
        raise _exceptions.FileFormatError(
            f"{path} is damaged: the entry 'tensors' has {name!r}: {type(tensor).__name__}; names of tensors "
            f"were wanted."
        )
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
        raise _exceptions.FileFormatError(
            f"{path} is damaged: {name!r} is not a tensor with all its numbers."
        )


def _parse_config(path: str | PathLike[str], config: str) -> dict[str, Any]:
    try:
        parsed = json.loads(config)
    except (ValueError, RecursionError) as error:
        raise _exceptions.FileFormatError(
            f"{path} is damaged: the entry 'config' is not JSON: {error}"
        ) from error
    if not isinstance(parsed, dict):
        raise _exceptions.FileFormatError(f"{path} is damaged: the entry 'config' is not a JSON object.")
    return parsed
