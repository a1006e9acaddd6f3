"""Writes the examples in the form that sphinx-gallery reads: titles underlined, text in reStructuredText."""

from __future__ import annotations

import ast
import re
import shutil
from pathlib import Path

_MARK = re.compile(r"^# %%(.*)\n", re.MULTILINE)
_TITLE = re.compile(r"^# # (.*)\n(?:#\n)?", re.MULTILINE)

HEADER = """\
Examples
========

Each is a script of the repository, run here in its quick form (seconds). ``lapgrad demo NAME`` runs it in
full, and ``lapgrad demo NAME --notebook FILE`` makes it a notebook.
"""


def write_sources(examples: Path, folder: Path) -> None:
    """Write all examples into a folder, which is emptied first; files that are unchanged keep their time."""
    before = {path.name: path.read_text() for path in folder.glob("*")} if folder.is_dir() else {}
    wanted = {path.name: convert_script(path.read_text(encoding="utf-8")) for path in examples.glob("*.py")}
    wanted["GALLERY_HEADER.rst"] = HEADER
    if before.keys() - wanted.keys():
        shutil.rmtree(folder)
        before = {}
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in wanted.items():
        if before.get(name) != text:
            (folder / name).write_text(text, encoding="utf-8")


def convert_script(script: str) -> str:
    """Return a script in cells with its docstring and text cells in reStructuredText.

    The heading of the first level is the title; without one the first line of the docstring is.

    Example:
        >>> opening = '\"\"\"A title: `x`\\n\\nMore.\"\"\"\\n'
        >>> print(convert_script(opening + "# %% [markdown]\\n# ## Part\\n# %%\\nx = 1\\n"))
        r\"\"\"
        A title: x
        ==========
        <BLANKLINE>
        More.
        \"\"\"
        # %%
        # Part
        # ----
        <BLANKLINE>
        # %%
        x = 1
        <BLANKLINE>
    """
    title, _, rest = (ast.get_docstring(ast.parse(script)) or "An example").partition("\n")
    if heading := _TITLE.search(script):
        title, rest = heading[1], f"{title}\n{rest}"
        script = _TITLE.sub("", script, count=1)
    title = title.strip().rstrip(".").replace("`", "")
    opening, *cells = _MARK.split(script)
    statements = ast.parse(opening).body
    code = ast.unparse(statements[1:]) if len(statements) > 1 else ""
    rest = convert_markdown(rest.strip("\n"))
    parts = ['r"""', title, "=" * len(title), *([""] if rest else []), rest]
    head = "\n".join(part for i, part in enumerate(parts) if part or i == 3) + '\n"""\n'
    text = [head + (f"{code}\n" if code else "")]
    for mark, body in zip(cells[::2], cells[1::2], strict=True):
        if "[markdown]" in mark:
            lines = [re.sub(r"^# ?", "", line) for line in body.strip("\n").splitlines()]
            converted = convert_markdown("\n".join(lines)).splitlines()
            text.append("# %%\n" + "".join(f"# {line}".rstrip() + "\n" for line in converted) + "\n")
        else:
            text.append("# %%\n" + body)
    return "".join(text)


def convert_markdown(text: str) -> str:
    """Return a cell of text, in the part of Markdown that the examples use, as reStructuredText.

    Example:
        >>> print(convert_markdown("## A `b`\\nsee `c` and $d^2$, [here](https://e.org)"))
        A b
        ---
        see ``c`` and :math:`d^2`, `here <https://e.org>`__
    """
    lines = []
    for line in text.splitlines():
        heading = re.match(r"(#+) (.*)", line)
        if heading:
            title = heading[2].replace("`", "").replace("$", "")
            lines += [title, ("-" if len(heading[1]) <= 2 else "~") * len(title)]
        else:
            lines.append(line)
    result = "\n".join(lines)
    # Formulas first: a backtick of :math: must not be doubled. A formula on lines of its own is a block.
    parts = re.split(r"(\$\$.+?\$\$|\$[^$]+\$|`[^`]+`)", result, flags=re.DOTALL)
    for i, part in enumerate(parts):
        if part.startswith("$$"):
            parts[i] = "\n\n.. math:: " + " ".join(part[2:-2].split()) + "\n\n"
        elif part.startswith("$"):
            parts[i] = f":math:`{part[1:-1]}`"
        elif part.startswith("`"):
            parts[i] = f"`{part}`"
        else:
            parts[i] = re.sub(r"\[([^\]]+)\]\(([^)]+)\)", r"`\1 <\2>`__", part)
    return "".join(parts)
