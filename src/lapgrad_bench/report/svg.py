"""matplotlib figures as SVG elements inside an HTML page."""

from __future__ import annotations

import contextlib
import io
import itertools
import re
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import matplotlib.style
from markupsafe import Markup
from matplotlib.backends.backend_svg import FigureCanvasSVG

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLE = {
    "svg.fonttype": "none",  # text stays text: it takes the font of the page, and can be found and copied
    "svg.hashsalt": "lapgrad",  # the same results make the same page
    "text.parse_math": False,  # a dollar sign in a results file is no formula
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.titlesize": 11,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.3,
}
_LINK = re.compile(r"#([\w.-]+)")
_TEXT_COLOR = "#000000"


@contextlib.contextmanager
def use_page_style() -> Iterator[None]:
    """Draw figures within this context in the style of the page, whatever the user's matplotlibrc says."""
    with matplotlib.style.context(_STYLE, after_reset=True), warnings.catch_warnings():
        # matplotlib warns of letters that its font lacks; the browser has a font for them.
        warnings.filterwarnings("ignore", category=UserWarning, module="matplotlib")
        yield


class SvgEmbedder:
    """Turns the figures of one page into SVG elements, none of which shares an id with another."""

    def __init__(self) -> None:
        self._numbers = itertools.count()

    def embed(self, figure: Figure, description: str = "") -> Markup:
        """Return the figure as an SVG element that takes its colours, font and width from the page.

        Args:
            figure: Drawn within `use_page_style`.
            description: What the plot shows, for readers who cannot see it. Empty: the figure
                is a legend, whose words are in the descriptions of the plots.
        """
        file = io.StringIO()
        # Unlike Figure.savefig, the canvas draws once.
        FigureCanvasSVG(figure).print_svg(file, metadata={"Date": None})
        root = ElementTree.fromstring(file.getvalue())
        prefix = f"plot{next(self._numbers)}-"
        for parent in root.iter():
            for child in list(parent):
                # The rules of matplotlib's style element would hold for the whole page; style.css has them.
                if child.tag.endswith(("}metadata", "}style")):
                    parent.remove(child)
        ids = {element.attrib["id"] for element in root.iter() if "id" in element.attrib}
        for element in root.iter():
            _adapt_element(element, prefix, ids)
        for name in ("width", "height", "version"):
            del root.attrib[name]
        root.set("class", "plot" if description else "plot legend")
        root.attrib |= {"role": "img", "aria-label": description} if description else {"aria-hidden": "true"}
        return Markup(ElementTree.tostring(root, encoding="unicode"))


def _adapt_element(element: ElementTree.Element, prefix: str, ids: set[str]) -> None:
    """Drop the namespace, put a prefix before ids, and set the properties of the style as attributes.

    The policy of the page forbids style attributes. Attributes such as ``fill`` may hold any value of CSS,
    and rules of style.css override them.
    """
    element.tag = element.tag.rpartition("}")[2]
    attributes = {name.rpartition("}")[2]: value for name, value in element.attrib.items()}
    for part in filter(str.strip, attributes.pop("style", "").split(";")):
        name, _, value = part.partition(":")
        attributes[name.strip()] = value.strip()
    attributes.pop("font-family", None)
    identity = attributes.pop("id", None)
    if identity and element.tag != "g":  # Nothing refers to a group.
        attributes["id"] = prefix + identity
    element.attrib.clear()
    for name, value in attributes.items():
        linked = _LINK.sub(lambda link: f"#{prefix}{link[1]}" if link[1] in ids else link[0], value)
        element.set(name, _adapt_color(linked))
    if element.tag != "text":
        element.text = None
    element.tail = None


def _adapt_color(value: str) -> str:
    """Return a value whose colour follows light and dark: that of text for black, others lighter in the dark.

    Example:
        >>> _adapt_color("#000000"), _adapt_color("#c1272d"), _adapt_color("none")
        ('currentColor', 'color-mix(in oklab, #c1272d, white var(--tint))', 'none')
    """
    if not re.fullmatch("#[0-9a-f]{6}", value):
        return value
    return "currentColor" if value == _TEXT_COLOR else f"color-mix(in oklab, {value}, white var(--tint))"
