"""Prints what an extra of the project needs, a requirement a line.

With it pip installs them while the core is compiled; asked for the extra itself, it compiles first.
"""

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]


def requirements(extra: str) -> Iterator[str]:
    for requirement in project["optional-dependencies"][extra]:
        own = re.fullmatch(rf"{project['name']}\[(.*)\]", requirement)
        if own is None:
            yield requirement
        else:
            for other in own[1].split(","):
                yield from requirements(other.strip())


print(*project["dependencies"], *requirements(sys.argv[1]), sep="\n")
