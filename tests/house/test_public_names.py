"""What tab completion and help() show: public names, and nothing else; each with more than a line to read."""

from __future__ import annotations

import ast
import importlib
import inspect
import pydoc
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import lapgrad

MODULES = (
    "lapgrad",
    "lapgrad.linalg",
    "lapgrad.distributed",
    "lapgrad.fused",
    "lapgrad.models",
    "lapgrad.models.kernels",
    "lapgrad.models.components",
    "lapgrad.models.likelihoods",
    "lapgrad.sklearn",
)
#: Modules that are imported when they are first asked for.
LATE = {"lapgrad": {"distributed", "models", "sklearn"}}
METACLASSES = {"type", "abc.ABCMeta", "ABCMeta"}


def find_names() -> Iterator[str]:
    for module in MODULES:
        for name in importlib.import_module(module).__all__:
            if not name.startswith("__"):
                yield f"{module}.{name}"


def resolve(path: str) -> object:
    module, name = path.rsplit(".", 1)
    return getattr(importlib.import_module(module), name)


@pytest.mark.parametrize("module", MODULES)
def test_dir_shows_public_names_only(module: str) -> None:
    found = importlib.import_module(module)
    assert set(dir(found)) == set(found.__all__) | LATE.get(module, set())
    for name in dir(found):
        assert getattr(found, name) is not None


def test_dir_shows_models_before_they_are_imported() -> None:
    code = "import sys, lapgrad; print('models' in dir(lapgrad), 'lapgrad.models' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["True", "False"]


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("cholesky", ": use lapgrad.linalg.cholesky"),
        ("mvn_nll", ": use lapgrad.fused.mvn_nll"),
        ("choleski", ""),
    ],
)
def test_unknown_names_lead_to_the_module_that_has_them(name: str, advice: str) -> None:
    with pytest.raises(AttributeError, match=f"^module 'lapgrad' has no attribute '{name}'{advice}$"):
        getattr(lapgrad, name)


@pytest.mark.parametrize("path", [*MODULES, *find_names()])
def test_help_is_worth_reading(path: str) -> None:
    value = importlib.import_module(path) if path in MODULES else resolve(path)
    text = inspect.getdoc(value) or ""
    first, *rest = text.splitlines()
    assert first.endswith((".", ":")) or "=" in first or "(" in first, first
    assert any(line.strip() for line in rest), f"help({path}) has one line only"
    if inspect.isclass(value):
        assert text not in [inspect.getdoc(base) for base in value.__bases__]
    if not isinstance(value, ModuleType):
        assert first in pydoc.render_doc(value, renderer=pydoc.plaintext)


@pytest.mark.parametrize("path", [path for path in find_names() if inspect.isclass(resolve(path))])
def test_help_shows_the_arguments_of_constructors(path: str) -> None:
    """The names that the docstring explains, not those of a function around the constructor."""
    value = resolve(path)
    assert inspect.isclass(value)
    if issubclass(value, Exception):
        return
    explained = pydoc.getdoc(value).partition("Args:\n")[2].partition("\n\n")[0]
    names = re.findall(r"^    \**(\w+)(?:, \**\w+)*:", explained, re.MULTILINE)
    assert set(names) <= set(inspect.signature(value).parameters)


def test_type_checkers_see_the_constructors() -> None:
    """They would take the ``__call__`` of a metaclass for the constructor of all of its classes."""
    for path in (Path(__file__).parents[2] / "src" / "lapgrad").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and {ast.unparse(base) for base in node.bases} & METACLASSES:
                seen = {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
                assert "__call__" not in seen, f"{path.name}: {node.name}"
