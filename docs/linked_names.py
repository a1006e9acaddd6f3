"""Links names of lapgrad in the text, such as ``lapgrad.potrf`` and ``lg.syevd(A)``, to their pages."""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes

_NAME = re.compile(r"(?:lg|lapgrad)((?:\.\w+)+)(?:\(.*\))?")


def link_names(app: Any, doctree: nodes.document, docname: str) -> None:
    """Turn code that is a public name, or a call of one, into a link to its page of the API reference.

    Code in titles and in other links stays as it is.
    """
    objects = app.env.get_domain("py").objects
    for literal in list(doctree.findall(nodes.literal)):
        match = _NAME.fullmatch(literal.astext())
        entry = objects.get(f"lapgrad{match[1]}") if match else None
        if entry is None or entry.docname == docname or _is_in_title_or_link(literal):
            continue
        uri = f"{app.builder.get_relative_uri(docname, entry.docname)}#{entry.node_id}"
        link = nodes.reference("", "", internal=True, refuri=uri)
        literal.replace_self(link)
        link += literal


def _is_in_title_or_link(node: nodes.Node) -> bool:
    while node.parent is not None:
        node = node.parent
        if isinstance(node, nodes.title | nodes.reference):
            return True
    return False
