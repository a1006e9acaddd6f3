"""Configuration of the documentation site: ``make docs``."""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
import tomllib
import warnings
from importlib import metadata
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from class_pages import FOREIGN, hide_members, insert_methods  # noqa: E402  (modules of this folder)
from gallery_sources import write_sources  # noqa: E402
from linked_names import link_names  # noqa: E402
from reference_pages import write_pages  # noqa: E402

PROJECT = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]

project = "lapgrad"
author = "the lapgrad developers"
project_copyright = author
version = release = metadata.version("lapgrad")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "mathml",
]
exclude_patterns = ["gallery_sources", "figures", "_templates", "guide/models_table.md"]
templates_path = ["_templates"]
source_suffix = {".rst": "restructuredtext", ".md": "markdown"}
suppress_warnings = [
    # The configuration holds functions, for sphinx-gallery, which cannot be kept between builds.
    "config.cache",
]

# Markdown.
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "fieldlist"]
myst_heading_anchors = 3
myst_dmath_double_inline = True

# API pages, from docstrings in Google style with the sections that operators have.
autosummary_generate = True
autosummary_imported_members = False
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
# Methods of a model, and not the eighty of the classes it is built on.
autodoc_default_options = {"inherited-members": FOREIGN}
autosummary_context = {"hide_members": hide_members}
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_custom_sections = ["Gradient", "Memory", "Cost"]
napoleon_use_rtype = False
# As a list: each would be described a second time, as a member of its class.
napoleon_use_ivar = True


class SavedFigures:
    """Shows the figures that an example has written to its folder, when they are complete.

    The scraper of sphinx-gallery takes figures after each cell and closes them; the examples draw some of
    theirs in several cells.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.shown: set[Path] = set()

    def choose_arguments(self, conf: dict[str, Any], variables: dict[str, Any]) -> list[str]:
        """Return the arguments of the next example: its quick form, and a new folder for its figures."""
        self.folder = Path(tempfile.mkdtemp())
        return ["--quick", "--output", str(self.folder)]

    def __call__(self, block: Any, variables: dict[str, Any], conf: dict[str, Any]) -> str:
        """Return the markup of figures that were written since the last call."""
        from sphinx_gallery.scrapers import figure_rst

        new = [path for path in sorted(self.folder.glob("*.png")) if path not in self.shown]
        targets = []
        for path in new:
            targets.append(next(variables["image_path_iterator"]))
            shutil.copy(path, targets[-1])
        self.shown.update(new)
        return str(figure_rst(targets, conf["src_dir"]))


def reset_torch(conf: dict[str, Any], name: str) -> None:
    """Undo what an example has set for its process: the next one begins as a script does."""
    import torch

    import lapgrad

    torch.set_default_dtype(torch.float32)
    torch.manual_seed(0)
    lapgrad.accelerate.off()


_FIGURES = SavedFigures()

# The gallery: the examples in their quick form, which takes seconds.
sphinx_gallery_conf = {
    "examples_dirs": "gallery_sources",
    "gallery_dirs": "gallery",
    "filename_pattern": r"\.py$",
    "copyfile_regex": r".*\.rst",
    "reset_argv": _FIGURES.choose_arguments,
    "reset_modules": ("matplotlib", reset_torch),
    "remove_config_comments": True,
    "download_all_examples": False,
    "show_memory": False,
    "show_signature": False,
    "write_computation_times": False,
    "plot_gallery": "True",
    "abort_on_example_error": True,
    "image_scrapers": (_FIGURES,),
    "matplotlib_animations": False,
    "thumbnail_size": (600, 420),
    "within_subsection_order": "FileNameSortKey",
}
# Figures are drawn without a window, and sphinx-gallery closes them.
warnings.filterwarnings("ignore", message="FigureCanvasAgg is non-interactive")

html_theme = "pydata_sphinx_theme"
html_title = "lapgrad"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_math_renderer = "mathml"
html_theme_options: dict[str, Any] = {
    "logo": {"text": "lapgrad"},
    "github_url": PROJECT["urls"]["Repository"],
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "header_links_before_dropdown": 7,
    "navbar_align": "left",
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
# Pages without others below them have no navigation on their left. Examples need the width for their code.
_ALONE = ("index", "getting_started", "performance", "known_problems_in_torch", "faq", "cite", "changelog")
html_sidebars: dict[str, list[str]] = {page: [] for page in (*_ALONE, "gallery/*")}
toc_object_entries_show_parents = "hide"


def escape_markup(text: str) -> str:
    """Return a line of a docstring in which only ``literals`` are markup.

    Example:
        >>> print(escape_markup("A: (*batch, n), |x|, model_ and ``(*a)``"))
        A: (\\*batch, n), \\|x\\|, model\\_ and ``(*a)``
    """
    parts = re.split(r"(``.+?``)", text)
    for i in range(0, len(parts), 2):
        parts[i] = re.sub(r"[*|]|(?<=\w)_(?!\w)|`", r"\\\g<0>", parts[i])
    return "".join(parts)


def set_exponents(line: str) -> str:
    """Return a line with raised exponents, outside of ``literals``.

    Example:
        >>> set_exponents("X = A^-1 B^T in n^3 flops, ``x^2``")
        'X = A⁻¹ Bᵀ in n³ flops, ``x^2``'
    """
    parts = re.split(r"(``.+?``)", line)
    for i in range(0, len(parts), 2):
        parts[i] = re.sub(r"\^(-?(?:\d+|T\b))(?!\w)", lambda found: found[1].translate(_RAISED), parts[i])
    return "".join(parts)


_RAISED = str.maketrans("-0123456789T", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹ᵀ")


def escape_docstring(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Escape what reStructuredText would take for markup: ``(*batch, n, n)``, ``|x|``."""
    if what == "property":
        # Else napoleon takes the words before a colon in the first line for a type.
        lines.insert(0, "\\ ")
    in_example = False
    for i, line in enumerate(lines):
        if line.strip().startswith(">>>"):
            in_example = True
        elif not line.strip():
            in_example = False
        if not in_example:
            lines[i] = escape_markup(set_exponents(line))
    # The figures of a section "Memory" are a line of their own.
    figures = [
        i for i, line in enumerate(lines) if re.match(r"\s+forward [\d(].*, backward [\d(][^.]*$", line)
    ]
    for i in reversed(figures):
        lines.insert(i + 1, "")


def skip_field(app: Any, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """Leave out the fields of named tuples, which the docstring of the class describes."""
    return True if type(obj).__name__ == "_tuplegetter" else None


def setup(app: Any) -> None:
    """Called by Sphinx."""
    write_pages(HERE)
    write_sources(HERE.parent / "examples", HERE / "gallery_sources")
    # Before napoleon (500) turns sections into markup.
    app.connect("autodoc-process-docstring", escape_docstring, priority=400)
    # After napoleon, because the links that this inserts are markup already.
    app.connect("autodoc-process-docstring", insert_methods, priority=600)
    app.connect("autodoc-skip-member", skip_field)
    app.connect("doctree-resolved", link_names)
