"""Distributions of torch as entries of descriptions, so that files have the priors of hyper-parameters."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from lapgrad import _errors
from lapgrad.models._storage.entries import PART, TEXT, check_entries


def describe_distribution(prior: Distribution) -> dict[str, Any]:
    """Return the name of the class and its arguments, in types that JSON knows.

    Raises:
        OptionError: It is not one of the classes of ``torch.distributions`` that are defined by their
            arguments.
    """
    kind = type(prior).__name__
    known = getattr(torch.distributions, kind, None)
    # Some classes list two names for one thing (``probs`` and ``logits``), and need only one.
    names = [name for name in prior.arg_constraints if isinstance(getattr(prior, name, None), Tensor)]
    if known is not type(prior) or not names:
        raise _errors.OptionError(
            f"save: a prior of class {kind} cannot be written to a file; take a class of torch.distributions "
            f"that is defined by its arguments, or remove it first: set_prior(name, None)."
        )
    return {"kind": kind, "arguments": {name: getattr(prior, name).tolist() for name in names}}


def make_distribution(config: object) -> Distribution:
    """Return the distribution that ``describe_distribution`` has described, in float64."""
    check_entries(config, {"kind": TEXT, "arguments": PART}, "a prior")
    assert isinstance(config, dict)
    kind = getattr(torch.distributions, config["kind"], None)
    if not (isinstance(kind, type) and issubclass(kind, Distribution)):
        raise _errors.FileFormatError(f"load: torch.distributions has no {config['kind']}.")
    arguments = {
        name: torch.tensor(value, dtype=torch.float64) for name, value in config["arguments"].items()
    }
    return kind(**arguments)


def move_distribution(prior: Distribution, like: Tensor) -> Distribution:
    """Return a distribution with the dtype and device of a tensor; classes of users stay as they are."""
    arguments = {
        name: value
        for name in prior.arg_constraints
        if isinstance(value := getattr(prior, name, None), Tensor)
    }
    if not arguments or all(v.device == like.device and v.dtype == like.dtype for v in arguments.values()):
        return prior
    if getattr(torch.distributions, type(prior).__name__, None) is not type(prior):
        return prior
    return type(prior)(**{name: v.to(like) for name, v in arguments.items()}, validate_args=False)
