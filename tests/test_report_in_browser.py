"""The page of `lapgrad report` in a browser: nothing is fetched, nothing complains, nothing is cut off."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import browser
import pytest
import sample_results

from lapgrad.report.page import page
from lapgrad.report.sources import read

PROGRAM = browser.find()

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(
        PROGRAM is None, reason=f"no browser: none of {', '.join(browser.NAMES)} is installed"
    ),
]

WIDTHS = (360, 1280)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Browser]:
    """A page of all kinds, one kind from two machines; texts that would do harm among them."""
    folder = tmp_path_factory.mktemp("report")
    paths = sample_results.write(folder, *sample_results.MAKERS)
    other = sample_results.ops("cuda")
    other.machine = sample_results.machine(cuda={"devices": ["<img src=x> GPU"]})
    other.command = "lapgrad bench ops --output " + "a_very_long_name" * 20
    other.write(folder / "other.json")
    runs, problems = read([*paths, folder / "other.json"])
    assert not problems
    file = folder / "report.html"
    file.write_text(page(runs), encoding="utf-8")
    assert PROGRAM
    with browser.running(PROGRAM) as opened:
        opened.resize(1280)
        opened.open(file)
        yield opened
        _keep_screenshots(opened)


def _keep_screenshots(opened: browser.Browser) -> None:
    """To look at, where the environment names a folder for them."""
    folder = os.environ.get("REPORT_SCREENSHOTS")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        for width in WIDTHS:
            for scheme in ("light", "dark"):
                opened.resize(width)
                opened.prefer(scheme)
                opened.screenshot(Path(folder) / f"{width}-{scheme}.png")


def test_nothing_is_fetched_and_nothing_complains(shown: browser.Browser) -> None:
    assert not shown.complaints
    assert len(shown.requests) == 1
    assert shown.requests[0].startswith("file:")
    assert shown.evaluate("performance.getEntriesByType('resource').length") == 0


def test_the_policy_keeps_foreign_scripts_out(shown: browser.Browser) -> None:
    attempt = "(() => { const s = document.createElement('script'); s.textContent = 'window.harm = 1';"
    shown.evaluate(attempt + "document.body.append(s); s.remove(); })()")
    assert shown.evaluate("window.harm") is None
    assert any("Content Security Policy" in complaint for complaint in shown.complaints)
    shown.complaints.clear()


@pytest.mark.parametrize("width", WIDTHS)
def test_no_scrolling_sideways(shown: browser.Browser, width: int) -> None:
    shown.resize(width)
    assert shown.evaluate("document.documentElement.scrollWidth") == width
    assert shown.evaluate("getComputedStyle(document.body).overflowX") == "visible", (
        "nothing is hidden instead"
    )
    cut = """[...document.querySelectorAll('h1, h2, h3, h4, p, li, figure, .scroll, dd')]
        .filter(e => e.checkVisibility() && e.getBoundingClientRect().right > innerWidth + 0.5)
        .filter(e => !e.closest('.scroll') || e.matches('.scroll')).map(e => e.textContent.slice(0, 60))"""
    assert shown.evaluate(cut) == []


# Marks and letters of plots that are cut off.
OUTSIDE = """[...document.querySelectorAll('svg circle, svg polygon, svg text')]
    .filter(e => e.checkVisibility())
    .filter(e => {
        const svg = e.closest('svg'), free = getComputedStyle(svg).overflow === 'visible';
        const a = e.getBoundingClientRect(), b = (free ? e.closest('figure') : svg).getBoundingClientRect();
        return a.left < b.left - 2 || a.right > b.right + 2 || a.top < b.top - 2 || a.bottom > b.bottom + 2;
    })
    .map(e => e.closest('figure').textContent.slice(0, 40) + ': ' + e.outerHTML)"""


@pytest.mark.parametrize("width", WIDTHS)
def test_plots_have_room(shown: browser.Browser, width: int) -> None:
    shown.resize(width)
    boxes: list[Any] = (
        shown.evaluate("""[...document.querySelectorAll('svg')].filter(e => e.checkVisibility())
        .map(e => e.getBoundingClientRect()).map(r => [r.left, r.right, r.width, r.height])""")
    )
    assert len(boxes) > 50
    for left, right, across, height in boxes:
        assert left >= 0
        assert right <= width
        assert min(across, height) >= 10
    assert shown.evaluate(OUTSIDE) == []
    sizes = """[...document.querySelectorAll('svg text')].filter(e => e.checkVisibility())
        .map(e => parseFloat(getComputedStyle(e).fontSize) * e.getScreenCTM().a)"""
    assert min(shown.evaluate(sizes)) >= 9


def column(shown: browser.Browser, table: str, i: int) -> list[str]:
    rows = f"[...document.querySelectorAll('#{table} tbody tr')].filter(r => !r.hidden)"
    found: list[str] = shown.evaluate(f"{rows}.map(r => r.cells[{i}].textContent)")
    return found


def test_tables_sort_by_what_cells_mean(shown: browser.Browser) -> None:
    heading = "document.querySelectorAll('#opsA-cases thead th')[{}]"
    names: list[str] = shown.evaluate(
        "[...document.querySelectorAll('#opsA-cases thead th')].map(e => e.textContent)"
    )
    time = names.index("lapgrad")
    units = {"µs": 1e-6, "ms": 1e-3, "s": 1.0}
    for direction in ("ascending", "descending"):
        shown.evaluate(f"{heading.format(time)}.querySelector('button').click()")
        assert shown.evaluate(f"{heading.format(time)}.getAttribute('aria-sort')") == direction
        texts = [cell.split() for cell in column(shown, "opsA-cases", time)]
        seconds = [float(figure) * units[unit] for figure, unit in texts]
        assert len(set(seconds)) > 10
        assert seconds == sorted(seconds, reverse=direction == "descending")
    shown.evaluate(f"{heading.format(0)}.querySelector('button').click()")
    operators = column(shown, "opsA-cases", 0)
    assert operators == sorted(operators)


def test_tables_filter(shown: browser.Browser) -> None:
    field = "document.querySelector('.filter + #opsA-cases').previousElementSibling.querySelector('input')"
    type_ = "{field}.value = '{text}', {field}.dispatchEvent(new Event('input'))"
    shown.evaluate(type_.format(field=field, text="potrf float32 BACK"))
    assert set(column(shown, "opsA-cases", 0)) == {"potrf"}
    assert len(column(shown, "opsA-cases", 0)) == 4
    assert (
        shown.evaluate(f"{field}.closest('.filter').querySelector('[role=status]').textContent")
        == "4 of 48 rows"
    )
    shown.evaluate(type_.format(field=field, text=""))
    assert len(column(shown, "opsA-cases", 0)) == 48


def test_sentences_count_what_the_table_shows(shown: browser.Browser) -> None:
    card = "[...document.querySelectorAll('.card')].find(c => /^B: .*against torch/.test(c.textContent))"
    lead: str = shown.evaluate(f"{card}.textContent")
    counts = re.search(r"in (\d+) of (\d+) cases.*?within 5 % in (\d+); slower in (\d+)", lead)
    assert counts
    names: list[str] = shown.evaluate(
        "[...document.querySelectorAll('#opsB-cases thead th')].map(e => e.textContent)"
    )
    i = names.index("torch") + 1
    speedups = [float(cell.rstrip("×")) for cell in column(shown, "opsB-cases", i)]
    faster, slower = sum(s > 1.05 for s in speedups), sum(s < 1 / 1.05 for s in speedups)
    even = len(speedups) - faster - slower
    assert [int(figure) for figure in counts.groups()] == [faster, len(speedups), even, slower]
    listed = shown.evaluate(f"{card}.querySelectorAll('.cases li').length")
    assert listed == slower


CONTRAST = """(() => {
    const parse = (text) => text.match(/[\\d.]+/g).map(Number);
    const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
        .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
        .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
    const behind = (e) => {
        for (; e; e = e.parentElement) {
            const colour = parse(getComputedStyle(e).backgroundColor);
            if (colour.length === 3 || colour[3] > 0) return colour;
        }
    };
    const low = [];
    const all = 'h1, h2, h3, h4, p, li, a, th, td, dt, dd, span, summary, svg text, button';
    for (const e of document.querySelectorAll(all)) {
        if (!e.checkVisibility() || !e.textContent.trim()) continue;
        const style = getComputedStyle(e), text = parse(e.closest('svg') ? style.fill : style.color);
        const [a, b] = [light(text), light(behind(e))].sort((x, y) => y - x);
        const contrast = (a + 0.05) / (b + 0.05);
        if (contrast < 4.5) low.push([e.tagName, contrast, e.textContent.slice(0, 30)]);
    }
    return low.slice(0, 5);
})()"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast(shown: browser.Browser, scheme: str) -> None:
    """Of all text, at least 4.5 : 1, as WCAG 2 asks for."""
    shown.prefer(scheme)
    background = shown.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(255, 255, 255)") == (scheme == "light")
    assert shown.evaluate(CONTRAST) == []
    shown.prefer("light")


def test_it_can_be_printed(shown: browser.Browser) -> None:
    assert shown.printed().startswith(b"%PDF")


def test_still_nothing_complains(shown: browser.Browser) -> None:
    """After everything else was tried."""
    assert not shown.complaints
    assert len(shown.requests) == 1
