"""Makes the links of README.md absolute for package metadata, where relative ones lead nowhere.

scikit-build-core calls ``dynamic_metadata`` when it builds a wheel or a source distribution
(``tool.dynamic-metadata`` in pyproject.toml). In the repository the README keeps its relative links,
which work there without a network.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_IMAGE = re.compile(r"(!\[[^\]]*\]\()(?!https?:)([^)\s]+)\)")
_LINK = re.compile(r"((?<!!)\[[^\]]*\]\()(?!https?:|#)([^)\s]+)\)")


def make_links_absolute(text: str, repository: str) -> str:
    """Return Markdown whose relative links lead to files of a repository on GitHub, branch main.

    Example:
        >>> make_links_absolute("[a](docs/a.md) ![b](b.png) [c](https://c.org)", "https://github.com/x/y")
        '[a](https://github.com/x/y/blob/main/docs/a.md) ![b](https://github.com/x/y/raw/main/b.png) [c](https://c.org)'
    """
    text = _IMAGE.sub(rf"\g<1>{repository}/raw/main/\g<2>)", text)
    return _LINK.sub(rf"\g<1>{repository}/blob/main/\g<2>)", text)


def dynamic_metadata(settings: Mapping[str, Any], project: Mapping[str, Any]) -> dict[str, Any]:
    """Return the field ``readme`` of the metadata."""
    text = Path(settings["input"]).read_text(encoding="utf-8")
    return {
        "readme": {
            "content-type": "text/markdown",
            "text": make_links_absolute(text, project["urls"]["Repository"]),
        }
    }
