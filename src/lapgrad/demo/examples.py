"""Finds and runs the examples: scripts in examples/ of a checkout, or in lapgrad/examples of a wheel."""

from __future__ import annotations

import ast
import runpy
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

#: The folder of the Python modules. In an editable installation the compiled core is in another one.
PACKAGE = Path(__file__).resolve().parents[1]

#: Short names for the command line. Other examples are called by the name of their file.
SHORT_NAMES = {
    "gp": "gp_regression",
    "sgp": "sparse_gp",
    "blr": "bayesian_linear_regression",
    "kalman": "kalman_lds",
    "accelerate": "accelerate_gpytorch",
}


@dataclass(frozen=True)
class Example:
    """An example script.

    Attributes:
        name: The name of its file without suffix.
        path: The file.
    """

    name: str
    path: Path

    @property
    def title(self) -> str:
        """The first line of the docstring of the script."""
        docstring = ast.get_docstring(ast.parse(self.path.read_text(encoding="utf-8"))) or self.name
        return docstring.splitlines()[0]

    @property
    def short_name(self) -> str:
        """The name for the command line: the short one, if there is one."""
        short = [short for short, name in SHORT_NAMES.items() if name == self.name]
        return short[0] if short else self.name

    @property
    def takes_data(self) -> bool:
        """Whether the script has the option ``--data-dir``."""
        return '"--data-dir"' in self.path.read_text(encoding="utf-8")

    def run(self, arguments: Sequence[str]) -> None:
        """Run the script in this process, as if it had been called with these arguments."""
        before = sys.argv
        sys.argv = [str(self.path), *arguments]
        try:
            runpy.run_path(str(self.path), run_name="__main__")
        finally:
            sys.argv = before


def find_folder() -> Path | None:
    """Return the folder of the examples, of an installed package or of a checkout; None if there is none."""
    for place in (PACKAGE / "examples", PACKAGE.parents[1] / "examples"):
        if place.is_dir() and any(place.glob("*.py")):
            return place
    return None


def find_examples() -> list[Example]:
    """Return all examples, sorted by name."""
    place = find_folder()
    return [Example(path.stem, path) for path in sorted(place.glob("*.py"))] if place else []


def find_example(name: str) -> Example | None:
    """Return the example of this name or short name; None if there is none."""
    wanted = SHORT_NAMES.get(name, name)
    return next((example for example in find_examples() if wanted == example.name), None)
