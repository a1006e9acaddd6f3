"""Converts a script to a Jupyter notebook: `# %%` starts a code cell, `# %% [markdown]` a text cell."""

from __future__ import annotations

import json
import re
from typing import Any

_MARK = re.compile(r"^# %%(.*)$", re.MULTILINE)


def convert_to_notebook(script: str, arguments: list[str]) -> str:
    """Return the JSON text of a notebook (format 4.5) with the cells of a script.

    Args:
        script: The text of the script. A docstring before the first cell becomes text.
        arguments: The value of ``sys.argv`` that the first cell sets. Jupyter's own arguments must not reach
            the script.

    Example:
        >>> import json
        >>> text = convert_to_notebook("# %% [markdown]\\n# # Title\\n# %%\\nprint(1)\\n", ["x"])
        >>> cells = json.loads(text)["cells"]
        >>> [(cell["cell_type"], "".join(cell["source"])) for cell in cells]
        [('code', "import sys\\n\\nsys.argv = ['x']"), ('markdown', '# Title'), ('code', 'print(1)')]
    """
    cells = [_make_cell("code", f"import sys\n\nsys.argv = {arguments!r}")]
    opening, *rest = _MARK.split(script)
    cells += [_make_opening_cell(opening.strip())] if opening.strip() else []
    for mark, body in zip(rest[::2], rest[1::2], strict=True):
        kind = "markdown" if "[markdown]" in mark else "code"
        text = _strip_hashes(body) if kind == "markdown" else body.strip("\n")
        if text.strip():
            cells.append(_make_cell(kind, text))
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    content = {
        "cells": cells,
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _make_opening_cell(text: str) -> dict[str, Any]:
    """Return the cell of the text before the first mark: a docstring alone is text, anything else is code."""
    docstring = re.fullmatch(r'"""(.*)"""', text, re.DOTALL)
    return _make_cell("markdown", docstring[1].strip()) if docstring else _make_cell("code", text)


def _strip_hashes(body: str) -> str:
    return "\n".join(re.sub(r"^# ?", "", line) for line in body.strip("\n").splitlines())


def _make_cell(kind: str, text: str) -> dict[str, Any]:
    cell: dict[str, Any] = {"cell_type": kind, "metadata": {}, "source": text.splitlines(keepends=True)}
    if kind == "code":
        cell |= {"execution_count": None, "outputs": []}
    return cell
