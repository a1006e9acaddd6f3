"""The examples: scripts in cells, in the folder examples/ of a checkout, in lapgrad/examples of a wheel."""

from __future__ import annotations

import ast
import runpy
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

#: The folder of the modules; in an editable installation the compiled core lies in another one.
PACKAGE = Path(__file__).resolve().parents[1]

#: Short names for the command line; any other example goes by the name of its file.
SHORT_NAMES = {
    "gp": "gp_regression",
    "sgp": "sparse_gp",
    "blr": "bayesian_linear_regression",
    "kalman": "kalman_lds",
    "accelerate": "accelerate_gpytorch",
}


@dataclass(frozen=True)
class Example:
    """A script.

    Attributes:
        name: That of its file.
        path: Where it is.
    """

    name: str
    path: Path

    @property
    def title(self) -> str:
        """The first line of its docstring."""
        docstring = ast.get_docstring(ast.parse(self.path.read_text(encoding="utf-8"))) or self.name
        return docstring.splitlines()[0]

    @property
    def shown_name(self) -> str:
        """Its short name, if it has one."""
        short = [short for short, name in SHORT_NAMES.items() if name == self.name]
        return short[0] if short else self.name

    def run(self, arguments: Sequence[str]) -> None:
        """Runs it in this process, as if it had been called with these arguments."""
        before = sys.argv
        sys.argv = [str(self.path), *arguments]
        try:
            runpy.run_path(str(self.path), run_name="__main__")
        finally:
            sys.argv = before


def folder() -> Path | None:
    """Where the examples are: inside an installed package, or beside the sources of a checkout."""
    for place in (PACKAGE / "examples", PACKAGE.parents[1] / "examples"):
        if place.is_dir() and any(place.glob("*.py")):
            return place
    return None


def found() -> list[Example]:
    """All examples, by name."""
    place = folder()
    return [Example(path.stem, path) for path in sorted(place.glob("*.py"))] if place else []


def named(name: str) -> Example | None:
    """The example of this name or short name; None: there is none."""
    wanted = SHORT_NAMES.get(name, name)
    return next((example for example in found() if wanted == example.name), None)
