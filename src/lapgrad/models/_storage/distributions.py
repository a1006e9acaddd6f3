"""Distributions of torch as entries of descriptions, so that files have the priors of hyper-parameters."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from lapgrad import _exceptions
from lapgrad.models._storage.entries import PART, TEXT, check_entries


def describe_distribution(prior: Distribution) -> dict[str, Any]:
    """Return the name of the class and its arguments, in types that JSON knows.

    Raises:
        OptionError: It is not one of the classes of ``torch.distributions`` that are defined by their
            arguments.
    """
    kind = type(prior).__name__
    arguments = _get_arguments(prior)
    if not arguments:
        raise _exceptions.OptionError(
            f"save: a prior of class {kind} cannot be written to a file; take a class of torch.distributions "
            f"that is defined by its arguments, or remove it first: set_prior(name, None)."
        )
    return {"kind": kind, "arguments": {name: value.tolist() for name, value in arguments.items()}}


def make_distribution(config: object) -> Distribution:
    """Return the distribution that ``describe_distribution`` has described, in float64."""
    check_entries(config, {"kind": TEXT, "arguments": PART}, "a prior")
    assert isinstance(config, dict)
    known = getattr(torch.distributions, config["kind"], None)
    if not (isinstance(known, type) and issubclass(known, Distribution)):
        raise _exceptions.FileFormatError(f"load: torch.distributions has no {config['kind']}.")
    arguments = {
        name: torch.tensor(value, dtype=torch.float64) for name, value in config["arguments"].items()
    }
    kind: Any = known
    made: Distribution = kind(**arguments, validate_args=False)
    return made


def copy_distribution(prior: Distribution) -> Distribution:
    """Return a copy whose density is 0 outside of its support, where torch's own would raise an error."""
    arguments = _get_arguments(prior)
    if not arguments:
        return copy.deepcopy(prior)
    kind: Any = type(prior)
    copied: Distribution = kind(
        **{name: v.detach().clone() for name, v in arguments.items()}, validate_args=False
    )
    return copied


def move_distribution(prior: Distribution, like: Tensor) -> Distribution:
    """Return a distribution with the dtype and device of a tensor; classes of users stay as they are."""
    arguments = _get_arguments(prior)
    if all(v.device == like.device and v.dtype == like.dtype for v in arguments.values()):
        return prior
    kind: Any = type(prior)
    moved: Distribution = kind(**{name: v.to(like) for name, v in arguments.items()}, validate_args=False)
    return moved


def _get_arguments(prior: Distribution) -> dict[str, Tensor]:
    """Return the arguments that define a distribution of torch; none of other distributions."""
    if getattr(torch.distributions, type(prior).__name__, None) is not type(prior):
        return {}
    # Some classes list two names for one thing (``probs`` and ``logits``), and need only one.
    return {
        name: value
        for name in prior.arg_constraints
        if isinstance(value := getattr(prior, name, None), Tensor)
    }
