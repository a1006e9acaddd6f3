"""HTML and SVG in which every text is escaped that was not made here."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

_VOID = frozenset({"meta", "link", "br", "hr", "input", "img", "wbr"})

# What no HTML document may hold: control characters, halves of surrogate pairs, noncharacters.
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")


class Markup(str):
    """Text that is HTML already. All other text is escaped when it becomes the content of a tag."""

    __slots__ = ()


Content = str | Iterable["Content"] | None
"""What a tag holds: text, markup, nothing, or several of these."""

Attribute = str | int | float | bool | None


def escaped(text: str) -> Markup:
    """Text as HTML; markup stays as it is.

    Example:
        >>> escaped("<b> & 'c'")
        '&lt;b&gt; &amp; &#x27;c&#x27;'
        >>> escaped(Markup("<b>"))
        '<b>'
    """
    if isinstance(text, Markup):
        return text
    return Markup(html.escape(_FORBIDDEN.sub("\ufffd", text)))


def joined(*content: Content) -> Markup:
    """All of it, one after the other.

    Example:
        >>> joined("a < b", None, [Markup("<br>"), "c"])
        'a &lt; b<br>c'
    """
    return Markup("".join(_parts(content)))


def tag(name: str, /, *content: Content, **attributes: Attribute) -> Markup:
    """An element. Names of attributes have hyphens for underscores, and none at their end.

    Args:
        name: of the element.
        content: what it holds; text is escaped.
        attributes: values are escaped; True: an attribute without value; False and None: none at all.

    Example:
        >>> tag("p", "x < 1 ", tag("b", "only"), class_="note", hidden=True, id=None)
        '<p class="note" hidden>x &lt; 1 <b>only</b></p>'
        >>> tag("circle", cx="50%", data_value=0.25)
        '<circle cx="50%" data-value="0.25"></circle>'
    """
    start = f"<{name}{''.join(_attributes(attributes))}>"
    return Markup(start if name in _VOID else f"{start}{joined(*content)}</{name}>")


def _attributes(attributes: dict[str, Attribute]) -> Iterable[str]:
    for key, value in attributes.items():
        shown = key.rstrip("_").replace("_", "-")
        # SVG spells this one with capitals.
        shown = "viewBox" if shown == "viewbox" else shown
        if value is True:
            yield f" {shown}"
        elif value is not None and value is not False:
            yield f' {shown}="{html.escape(_FORBIDDEN.sub(chr(0xFFFD), str(value)))}"'


def _parts(content: Iterable[Content]) -> Iterable[str]:
    for part in content:
        if isinstance(part, str):
            yield escaped(part)
        elif part is not None:
            yield from _parts(part)
