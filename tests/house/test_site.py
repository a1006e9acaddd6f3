"""The documentation site without building it: pages exist, links resolve, code runs, names exist."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import lapgrad

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = {
    str(path.relative_to(DOCS)): path
    for path in sorted(DOCS.rglob("*.md"))
    if not {"gallery", "gallery_sources", "generated"} & set(path.parts) and path.name != "models_table.md"
}
#: Pages whose code takes no time (```python; ```py is a sketch). Others have a long fit, or show a hang.
WITH_CODE = [
    name
    for name, path in PAGES.items()
    if name.startswith(("guide/", "coming_from/", "getting_started", "index", "accelerate", "faq"))
    and "```python" in path.read_text()
]
#: What the build writes.
WRITTEN = {"gallery/index", "api/index"} | {
    f"gallery/{path.stem}" for path in (ROOT / "examples").glob("*.py")
}


def read_without_code(path: Path) -> str:
    return re.sub(r"```.*?```|:::.*?:::", "", path.read_text(), flags=re.DOTALL)


def make_anchors(text: str) -> set[str]:
    """Return the anchors of a page: its headings as GitHub and MyST write them, and labels."""
    found = set(re.findall(r"^\((\S+)\)=$", text, re.MULTILINE))
    for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        plain = re.sub(r"[`*]|\[|\]\([^)]*\)", "", heading).strip().lower()
        found.add(re.sub(r"[^\w\- ]", "", plain).replace(" ", "-"))
    return found


def list_entries(path: Path) -> list[str]:
    """Return the pages in the tables of contents of a page."""
    entries = []
    for block in re.findall(r"```\{toctree\}\n(.*?)```", path.read_text(), re.DOTALL):
        lines = [line for line in block.splitlines() if line.strip() and not line.startswith(":")]
        entries += [re.sub(r".*<(.*)>", r"\1", line) for line in lines]
    return entries


def test_every_page_is_in_a_table_of_contents_and_every_entry_exists() -> None:
    reached = {"index"}
    for path in PAGES.values():
        for entry in list_entries(path):
            target = (path.parent / entry).resolve().relative_to(DOCS)
            assert str(target) in WRITTEN or target.with_suffix(".md").as_posix() in PAGES, (
                f"{path.name}: {entry}"
            )
            reached.add(str(target))
    assert {name.removesuffix(".md") for name in PAGES} <= reached


@pytest.mark.parametrize("name", PAGES)
def test_links_resolve(name: str) -> None:
    path = PAGES[name]
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", read_without_code(path)):
        file, _, anchor = target.partition("#")
        found = (path.parent / file).resolve() if file else path
        if found.is_relative_to(DOCS) and str(found.relative_to(DOCS)) in WRITTEN:
            continue
        assert found.exists(), target
        if anchor:
            assert anchor in make_anchors(found.read_text()), target


@pytest.mark.parametrize("name", ["CHANGELOG.md", "CONTRIBUTING.md", "GLOSSARY.md"])
def test_links_of_included_files_lead_to_pages(name: str) -> None:
    """The site has no other files of the repository."""
    for target in re.findall(r"\]\((?!https?:|#)([^)\s#]+)", read_without_code(ROOT / name)):
        assert (ROOT / target).resolve().is_relative_to(DOCS), target
        assert (ROOT / target).exists(), target


@pytest.mark.parametrize("name", WITH_CODE)
def test_code_runs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {"__name__": "page"}
    try:
        for code in re.findall(r"```python\n(.*?)```", PAGES[name].read_text(), re.DOTALL):
            exec(compile(code, name, "exec"), names)
            # A comment beside print() that looks like a value is one.
            said = re.findall(r"print\(.*\)  # (tensor\(.*|True|False|\(.*|-?\d.*)", code)
            printed = capsys.readouterr().out.splitlines()
            assert set(said) <= set(printed)
    finally:
        lapgrad.accelerate.off()


@pytest.mark.parametrize("name", PAGES)
def test_names_are_those_of_lapgrad(name: str) -> None:
    for path in re.findall(r"`(?:lg|lapgrad)\.([A-Za-z_][\w.]*)", read_without_code(PAGES[name])):
        value: Any = lapgrad
        for part in path.split("."):
            value = getattr(value, part)


def test_five_questions_are_answered_within_two_clicks() -> None:
    front = PAGES["index.md"].read_text()
    for page, answer in {
        "coming_from/torch_linalg.md": "lg.syevd(A)",
        "guide/degenerate_spectra.md": "Why it is finite",
        "guide/distributed.md": "one process per GPU",
        "getting_started.md": "2.11 and newer",
        "cite.md": "1710.08717",
    }.items():
        assert f"]({page}" in front
        assert answer in PAGES[page].read_text()


def test_more_questions_are_one_click_away() -> None:
    """Each is a heading of the page of questions, to which the front page leads."""
    assert "](faq.md)" in PAGES["index.md"].read_text()
    headings = " ".join(re.findall(r"^## (.*)$", PAGES["faq.md"].read_text(), re.MULTILINE))
    for words in (
        *("float32", "Half precision", "Complex numbers", "Sparse", "devices", "it is used", "turn it off"),
        *("not positive definite", "deterministic", "DataLoader", "cite", "not faster", "torch.compile"),
    ):
        assert words in headings, words


def test_pages_that_follow_from_the_package_have_every_public_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    pages = importlib.import_module("reference_pages")
    try:
        reference, table = pages.make_reference(), pages.make_table()
    finally:
        del sys.modules["reference_pages"]
    for module in ("lapgrad", "lapgrad.linalg", "lapgrad.fused", "lapgrad.models", "lapgrad.models.kernels"):
        found = importlib.import_module(module)
        for name in found.__all__:
            value = getattr(found, name)
            if callable(value) and name != "accelerate":
                assert f"\n   {name}\n" in reference, f"{module}.{name}"
    assert "`~lapgrad.models.GPRegression` | ✓" in table
    assert "All of them have `fit`" in table


def test_examples_become_pages_of_the_gallery(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    sources = importlib.import_module("gallery_sources")
    try:
        sources.write_sources(ROOT / "examples", tmp_path / "sources")
    finally:
        del sys.modules["gallery_sources"]
    for example in (ROOT / "examples").glob("*.py"):
        text = (tmp_path / "sources" / example.name).read_text()
        compile(text, example.name, "exec")
        title, underline = text.splitlines()[1:3]
        assert title
        assert underline == "=" * len(title)
        assert len(title) < 70, "titles are in the navigation, too"
        assert "[markdown]" not in text
