"""What the page of a class shows: the methods that users call, with a list of them at the top."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

from reference_pages import METHODS

#: Methods of these classes and of their bases outside of lapgrad are not shown.
FOREIGN = "Module,tuple,Exception,BaseException,BaseEstimator,RegressorMixin"

#: What models, kernels and estimators call in each other. Those who write a model read the sources.
INTERNAL = frozenset(
    {
        *("config", "from_config", "extra_repr", "forward", "add_priors", "agree_on_parameters", "check_fit"),
        *("compute_losses", "compute_mean_from", "compute_objective", "compute_objectives", "describe_data"),
        *("get_mean_parameters", "get_noise", "get_noise_of_new", "get_scales_of_parameters", "has_all_data"),
        *("has_constant_mean", "has_priors", "iterate_hyperparameters", "keep_training_state"),
        *("measure_weak_priors", "refuse_on_grid", "set_criterion", "set_mean_function", "set_noise"),
        *("training_state", "replayable", "evaluation", "spread_rows", "share"),
        *("get_metadata_routing", "set_predict_request", "set_score_request"),
    }
)

#: Base classes whose methods are called by models. They stand on the page of the base class alone.
PROTOCOLS = (
    ("lapgrad.models.kernels", "Kernel"),
    ("lapgrad.models.kernels", "Stationary"),
    ("lapgrad.models.components", "Component"),
    ("lapgrad.models.likelihoods", "Likelihood"),
    ("lapgrad.models.likelihoods", "ElementwiseLikelihood"),
)

#: Those of them that users call, too.
CALLED_BY_USERS = {"diag", "features", "log_prob"}


def find_class(name: str) -> type:
    """Return the class with a full name."""
    module, _, own = name.rpartition(".")
    found: type = getattr(importlib.import_module(module), own)
    return found


def list_protocols(cls: type) -> list[str]:
    """Return the full names of the classes whose methods models call, of which this one is a subclass."""
    names = [f"{module}.{name}" for module, name in PROTOCOLS]
    return [name for name in names if find_class(name) in cls.__mro__[1:]]


def hide_members(name: str) -> str:
    """Return the members that the page of a class leaves out, separated by commas."""
    cls = find_class(name)
    protocols = list_protocols(cls) if name not in {".".join(pair) for pair in PROTOCOLS} else []
    inherited = {member for protocol in protocols for member in vars(find_class(protocol))}
    return ",".join(sorted(INTERNAL | (inherited - CALLED_BY_USERS)))


def list_methods(cls: type) -> list[str]:
    """Return the methods that the page of a class shows, those that users look for first."""
    name = f"{cls.__module__}.{cls.__qualname__}"
    hidden = set(hide_members(name).split(","))
    foreign = set(FOREIGN.split(","))
    own = [base for base in cls.__mro__ if base.__module__.startswith("lapgrad")]
    found = [
        method
        for base in own
        if base.__name__ not in foreign
        for method, value in vars(base).items()
        if method[0] != "_"
        and method not in hidden
        and (inspect.isfunction(value) or isinstance(value, classmethod))
        and inspect.getdoc(getattr(cls, method))
    ]
    order = {method: i for i, method in enumerate(METHODS)}
    return sorted(dict.fromkeys(found), key=lambda method: order.get(method, len(order)))


def insert_methods(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Put links to the methods of a class below the summary of its docstring."""
    if what != "class" or not name.startswith("lapgrad.") or issubclass(obj, BaseException | tuple):
        return
    methods = list_methods(obj)
    if len(methods) < 3:
        return
    links = ", ".join(f":py:meth:`{method} <{name}.{method}>`" for method in methods)
    text = ["", f"**Methods:** {links}", ""]
    if protocols := [link for link in list_protocols(obj) if find_class(link) is not obj]:
        link = f":py:class:`~{protocols[-1]}`"
        text += [f"What models call is described on the page of {link}.", ""]
    at = next((i for i, line in enumerate(lines) if line.startswith((":", ".. rubric"))), len(lines))
    lines[at:at] = text
