"""Writes formulas as MathML, which browsers show without a script, and so without a network."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.util import logging


def write_formula(writer: Any, node: nodes.math | nodes.math_block) -> None:
    """Write one formula; a command of LaTeX that is not known is a warning, which ends ``make docs``."""
    try:
        writer.body.append(tex2mathml(node.astext(), as_block=isinstance(node, nodes.math_block)))
    except MathError as error:
        logging.getLogger(__name__).warning("%s in %s", error, node.astext(), location=node)
    raise nodes.SkipNode


def setup(app: Any) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_html_math_renderer("mathml", (write_formula, None), (write_formula, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
