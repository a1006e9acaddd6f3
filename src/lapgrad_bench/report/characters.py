"""Characters that neither HTML nor SVG may hold."""

from __future__ import annotations

import re
from typing import Any

_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
"""Control characters, halves of surrogate pairs, and code points that are no characters."""


def replace_forbidden(value: Any) -> Any:
    """Return the value with U+FFFD for forbidden characters in its texts, also within lists and dictionaries.

    Example:
        >>> replace_forbidden({"a": ["b" + chr(0), 1.0]}) == {"a": ["b" + chr(0xFFFD), 1.0]}
        True
    """
    if isinstance(value, str):
        # Text that is unchanged keeps its class: Jinja2 marks what is escaped already by a subclass of str.
        return _FORBIDDEN.sub("\ufffd", value) if _FORBIDDEN.search(value) else value
    if isinstance(value, dict):
        return {replace_forbidden(key): replace_forbidden(inner) for key, inner in value.items()}
    return [replace_forbidden(inner) for inner in value] if isinstance(value, list) else value
