"""Writes the pages that follow from the package itself: the API reference, and the table of models.

They are written when the site is built, so that a name that is added to the package is on the site.
"""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from typing import Any

#: Title and module of each section of the API reference, and which of its public names it has.
SECTIONS = (
    ("Operators", "lapgrad", "functions"),
    ("Linear algebra", "lapgrad.linalg", "functions"),
    ("Fused criteria", "lapgrad.fused", "all"),
    ("Several processes", "lapgrad.distributed", "all"),
    ("Models", "lapgrad.models", "models"),
    ("Parts of models, results, criteria", "lapgrad.models", "others"),
    ("Kernels", "lapgrad.models.kernels", "all"),
    ("Likelihoods", "lapgrad.models.likelihoods", "all"),
    ("Components of time series", "lapgrad.models.components", "all"),
    ("Estimators for scikit-learn", "lapgrad.sklearn", "all"),
    ("Results of operators", "lapgrad", "results"),
    ("Results of linear algebra", "lapgrad.linalg", "results"),
    ("Exceptions and warnings", "lapgrad", "exceptions"),
)

#: Methods of models that users look for. Those that all models have are listed below the table.
METHODS = (
    "fit",
    "predict",
    "sample",
    "log_prob",
    "plot",
    "summary",
    "save",
    "load",
    "hyperparameters",
    "set_values",
    "fix",
    "free",
    "set_prior",
    "set_bounds",
)


def write_pages(folder: Path) -> None:
    """Write ``api/index.rst`` and ``guide/models_table.md`` into the folder of the site's sources."""
    pages = {
        folder / "api" / "index.rst": make_reference(),
        folder / "guide" / "models_table.md": make_table(),
    }
    for path, text in pages.items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def list_names(module: str, kind: str) -> list[str]:
    """Return the public names of a module that a section has."""
    found = importlib.import_module(module)
    return [name for name in found.__all__ if kind in ("all", _classify(getattr(found, name)))]


def _classify(value: Any) -> str:
    from lapgrad.models._model import StoredModel

    if not inspect.isclass(value):
        of_models = inspect.isfunction(value) and value.__module__.startswith("lapgrad.models")
        return "others" if of_models else "functions" if inspect.isfunction(value) else ""
    if issubclass(value, Warning | Exception):
        return "exceptions"
    if issubclass(value, StoredModel):
        return "models" if not inspect.isabstract(value) else "others"
    return "others" if value.__module__.startswith("lapgrad.models") else "results"


def make_reference() -> str:
    """Return the page of all public names, in reStructuredText."""
    text = ["API reference", "=============", "", "Every public name. ``help()`` has the same text.", ""]
    for title, module, kind in SECTIONS:
        names = list_names(module, kind)
        text += [title, "-" * len(title), "", f".. currentmodule:: {module}", ""]
        text += [".. autosummary::", "   :toctree: generated", "   :nosignatures:"]
        text += [f"   :caption: {title}", ""]
        text += [f"   {name}" for name in names] + [""]
    text += ["Acceleration", "------------", "", ".. toctree::", "", "   accelerate", ""]
    return "\n".join(text)


def make_table() -> str:
    """Return the table of models and their methods, in Markdown."""
    models = importlib.import_module("lapgrad.models")
    found = {name: getattr(models, name) for name in list_names("lapgrad.models", "models")}
    shared = [method for method in METHODS if all(hasattr(model, method) for model in found.values())]
    columns = [method for method in METHODS if method not in shared]
    lines = [f"| | {' | '.join(columns)} |", f"|---|{'---|' * len(columns)}"]
    for name, model in found.items():
        marks = ["✓" if hasattr(model, method) else "" for method in columns]
        lines.append(f"| {{py:class}}`~lapgrad.models.{name}` | {' | '.join(marks)} |")
    return "\n".join([*lines, "", f"All of them have {', '.join(f'`{method}`' for method in shared)}.", ""])
