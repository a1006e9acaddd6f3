"""Checks the links of the built site: ``python docs/check_links.py build/docs/html [--external]``.

Links inside of the site must lead to a file, and to an anchor in it. Links to other sites are listed; with
``--external``, or where there is a network, each is asked for. A site that does not answer is an error with
``--external`` only.
"""

from __future__ import annotations

import argparse
import sys
import urllib.error
import urllib.request
from collections import defaultdict
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit


class Page(HTMLParser):
    """The links and anchors of one page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        """Collect ``href``, ``src``, ``id`` and ``name``."""
        for name, value in attributes:
            if value is None:
                continue
            if name == "id" or (name == "name" and tag == "a"):
                self.anchors.add(value)
            if (name == "href" and tag in ("a", "link")) or (name == "src" and tag in ("img", "script")):
                self.links.append(value)


def main() -> int:
    """Check all pages; return 1 if a link is dead."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("site", type=Path)
    parser.add_argument("--external", action="store_true", help="ask other sites; no answer is an error")
    arguments = parser.parse_args()
    # The theme keeps a template among its files.
    files = [path for path in arguments.site.rglob("*.html") if "_static" not in path.parts]
    pages = {path.resolve(): Page(path) for path in files}
    dead, external, count = [], defaultdict(set), 0
    for path, page in pages.items():
        for link in page.links:
            if urlsplit(link).scheme in ("http", "https"):
                external[urldefrag(link)[0]].add(path.name)
            elif urlsplit(link).scheme == "":
                count += 1
                if not leads_somewhere(link, path, pages):
                    dead.append(f"{path.relative_to(arguments.site.resolve())}: {link}")
    for line in sorted(set(dead)):
        print(f"dead link: {line}")
    print(f"{len(pages)} pages, {count} links inside of the site, {len(set(dead))} dead")
    print(
        f"{len(external)} links to other sites" + (":" if arguments.external else " (--external asks them)")
    )
    failed = [link for link in sorted(external) if arguments.external and not answers(link)]
    for link in failed:
        print(f"no answer: {link} (in {', '.join(sorted(external[link]))})")
    return 1 if dead or failed else 0


def leads_somewhere(link: str, source: Path, pages: dict[Path, Page]) -> bool:
    """Return whether a link of a page leads to a file, and to its anchor if it names one."""
    target, anchor = urldefrag(link)
    path = (source.parent / unquote(urlsplit(target).path)).resolve() if target else source
    if path.is_dir():
        path /= "index.html"
    if not path.exists():
        return False
    return not anchor or path not in pages or unquote(anchor) in pages[path].anchors


def answers(link: str) -> bool:
    """Return whether another site has the page; a refusal to talk to programs counts as an answer."""
    request = urllib.request.Request(link, headers={"User-Agent": "lapgrad link check"}, method="HEAD")
    try:
        with urllib.request.urlopen(request, timeout=20):
            return True
    except urllib.error.HTTPError as error:
        return error.code not in (404, 410)
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(main())
