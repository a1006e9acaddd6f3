"""The page of `lapgrad report` in a browser: nothing is fetched, nothing complains, nothing is cut off."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import browser
import pytest
import sample_results

from lapgrad_bench.common.results import Results
from lapgrad_bench.report.page import render_page
from lapgrad_bench.report.sources import read_runs

if TYPE_CHECKING:
    from playwright.sync_api import Page

PROGRAM = browser.find_browser()

pytest.importorskip("playwright", reason="no playwright: pip install playwright")
pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(
        PROGRAM is None, reason=f"no browser: none of {', '.join(browser.NAMES)} is installed"
    ),
]

PHONES, DESKTOP = (360, 390), 1280
WIDTHS = (*PHONES, DESKTOP)


@dataclass
class OpenPage:
    """A page in a window of one width, with its console messages and network requests."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))

    def evaluate(self, expression: str) -> Any:
        """Return the value of JavaScript on the page."""
        return self.page.evaluate(expression)


def make_wide_results() -> Results:
    """Return results that need much space: five libraries, many close sizes, operators with long names."""
    results = sample_results.ops()
    results.machine = sample_results.machine(cpu={"model": "Wide CPU", "cores": 4})
    square = [row for row in results.rows if row["shape"] == [64, 64]]
    results.rows += [
        {**row, "shape": [n, n], **sample_results.timing(row["median_s"] * (n / 64) ** 2.5)}
        for row in square
        for n in (16, 32, 128, 500, 512, 1000, 1536, 2048, 4096)
    ]
    for row in results.rows:
        row["operator"] = {"syrk": "linalg.solve_psd"}.get(row["operator"], row["operator"])
        row["shape"] = [10000, 64, 64] if len(row["shape"]) == 3 else row["shape"]
        row["extra_bytes"] = 123456789 if row["library"] == "torch" else row["extra_bytes"]
    results.rows += [
        {**row, "library": library, **sample_results.timing(row["median_s"] * factor)}
        for row in results.rows
        for library, factor in (("tensorflow", 1.7), ("mxnet", 3.1))
        if row["library"] == "jax"
    ]
    results.rows += [
        {**row, "operator": f"fused.operator_{i}"}
        for row in results.rows
        for i in range(9)
        if row["operator"] == "potrf" and len(row["shape"]) == 3
    ]
    return results


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, OpenPage]]:
    """Windows by width, with a page of all kinds, one kind from three machines; harmful texts among them."""
    folder = tmp_path_factory.mktemp("report")
    paths = sample_results.write(folder, *sample_results.MAKERS)
    other = sample_results.ops("cuda")
    other.machine = sample_results.machine(cuda={"devices": ["<img src=x> GPU"]})
    other.command = "lapgrad bench ops --output " + "a_very_long_name" * 20
    other.write(folder / "other.json")
    make_wide_results().write(folder / "wide.json")
    runs, problems = read_runs([*paths, folder / "other.json", folder / "wide.json"])
    assert not problems
    file = folder / "report.html"
    file.write_text(render_page(runs), encoding="utf-8")
    assert PROGRAM
    with browser.start_browser(PROGRAM) as program:
        windows = {}
        for width in WIDTHS:
            size = {"width": width, "height": 900}
            window = OpenPage(program.new_page(viewport=size, is_mobile=width != DESKTOP))
            window.page.goto(file.as_uri())
            windows[width] = window
        yield windows
        save_screenshots(windows)


@pytest.fixture
def desktop(pages: dict[int, OpenPage]) -> OpenPage:
    return pages[DESKTOP]


def save_screenshots(pages: dict[int, OpenPage]) -> None:
    """Save pictures of the whole page, where the environment names a folder for them."""
    folder = os.environ.get("REPORT_SCREENSHOTS")
    for width, window in pages.items() if folder else ():
        for scheme in ("light", "dark"):
            window.page.emulate_media(color_scheme=scheme)
            window.page.screenshot(path=Path(folder) / f"{width}-{scheme}.png", full_page=True)


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_fetched_and_nothing_complains(pages: dict[int, OpenPage], width: int) -> None:
    window = pages[width]
    assert not window.complaints
    assert len(window.requests) == 1
    assert window.requests[0].startswith("file:")
    assert window.evaluate("performance.getEntriesByType('resource').length") == 0


def test_the_policy_keeps_foreign_scripts_and_styles_out(desktop: OpenPage) -> None:
    attempt = "(() => { const e = document.createElement('%s'); e.textContent = '%s';"
    attempt += "document.body.append(e); e.remove(); })()"
    desktop.evaluate(attempt % ("script", "window.harm = 1"))
    assert desktop.evaluate("window.harm") is None
    desktop.evaluate(attempt % ("style", "body { display: none }"))
    assert sum("Content Security Policy" in complaint for complaint in desktop.complaints) == 2
    desktop.complaints.clear()


@pytest.mark.parametrize("width", WIDTHS)
def test_no_scrolling_sideways(pages: dict[int, OpenPage], width: int) -> None:
    window = pages[width]
    assert window.evaluate("document.documentElement.scrollWidth") == width
    assert window.evaluate("getComputedStyle(document.body).overflowX") == "visible", (
        "nothing is hidden instead"
    )
    cut = """[...document.querySelectorAll('h1, h2, h3, h4, p, li, figure, .scroll, dd')]
        .filter(e => e.checkVisibility() && e.getBoundingClientRect().right > innerWidth + 0.5)
        .filter(e => !e.closest('.scroll') || e.matches('.scroll')).map(e => e.textContent.slice(0, 60))"""
    assert window.evaluate(cut) == []


def test_tables_fit_a_desktop(desktop: OpenPage) -> None:
    """No table scrolls sideways in its box, not even one of five libraries."""
    wide = (
        "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth).map(e => e.id)"
    )
    assert desktop.evaluate("document.querySelector('#opsC-cases thead tr').cells.length") == 18
    assert desktop.evaluate(wide) == []


@pytest.mark.parametrize("width", WIDTHS)
def test_no_holes_between_cards(pages: dict[int, OpenPage], width: int) -> None:
    """Cards of a row are equally high and fill its width."""
    rows: dict[float, list[dict[str, float]]] = {}
    for box in pages[width].evaluate(
        "[...document.querySelectorAll('.card')].map(e => e.getBoundingClientRect().toJSON())"
    ):
        rows.setdefault(box["top"], []).append(box)
    around = pages[width].evaluate("document.querySelector('.cards').getBoundingClientRect().toJSON()")
    assert len(rows) > 4
    for row in rows.values():
        assert len({box["bottom"] for box in row}) == 1
        assert row[0]["left"] == pytest.approx(around["left"], abs=0.5)
        assert row[-1]["right"] == pytest.approx(around["right"], abs=0.5)
    gaps = [after - rows[before][0]["bottom"] for before, after in zip(rows, list(rows)[1:], strict=False)]
    assert max(gaps) < 20


# Marks and letters of plots that are cut off.
OUTSIDE = """[...document.querySelectorAll('.plot use, .plot text')]
    .filter(e => e.checkVisibility())
    .filter(e => {
        const a = e.getBoundingClientRect(), b = e.closest('svg').getBoundingClientRect();
        return a.left < b.left - 2 || a.right > b.right + 2 || a.top < b.top - 2 || a.bottom > b.bottom + 2;
    })
    .map(e => e.closest('figure').textContent.slice(0, 40) + ': ' + e.outerHTML)"""

# Pairs of labels of one plot that touch each other.
TOUCHING = """[...document.querySelectorAll('.plot')].filter(e => e.checkVisibility()).flatMap(svg => {
    const texts = [...svg.querySelectorAll('text')].map(e => [e.textContent, e.getBoundingClientRect()]);
    return texts.flatMap(([one, a], i) => texts.slice(i + 1)
        .filter(([, b]) => a.left < b.right && b.left < a.right)
        .filter(([, b]) => a.top + 2 < b.bottom && b.top + 2 < a.bottom)
        .map(([other]) => `${svg.closest('figure').textContent.slice(0, 40)}: ${one} | ${other}`));
})"""


@pytest.mark.parametrize("width", WIDTHS)
def test_plots_have_room(pages: dict[int, OpenPage], width: int) -> None:
    window = pages[width]
    window.evaluate("document.querySelectorAll('details').forEach(e => { e.open = true; })")
    boxes: list[Any] = (
        window.evaluate("""[...document.querySelectorAll('svg')].filter(e => e.checkVisibility())
        .map(e => e.getBoundingClientRect()).map(r => [r.left, r.right, r.width, r.height])""")
    )
    assert len(boxes) > 50
    for left, right, across, height in boxes:
        assert left >= 0
        assert right <= width
        assert min(across, height) >= 10
    assert window.evaluate(OUTSIDE) == []
    assert window.evaluate(TOUCHING) == []
    sizes = """[...document.querySelectorAll('svg text')].filter(e => e.checkVisibility())
        .map(e => [e, e.getScreenCTM()])
        .map(([e, m]) => parseFloat(getComputedStyle(e).fontSize) * Math.hypot(m.a, m.b))"""
    assert min(window.evaluate(sizes)) >= 9


def read_column(window: OpenPage, table: str, i: int) -> list[str]:
    rows = f"[...document.querySelectorAll('#{table} tbody tr')].filter(r => !r.hidden)"
    found: list[str] = window.evaluate(f"{rows}.map(r => r.cells[{i}].textContent)")
    return found


def read_headings(window: OpenPage, table: str) -> list[str]:
    return window.page.locator(f"#{table} thead th").all_text_contents()


def test_tables_sort_by_what_cells_mean(desktop: OpenPage) -> None:
    time = read_headings(desktop, "opsA-cases").index("lapgrad")
    headings = desktop.page.locator("#opsA-cases thead th")
    units = {"µs": 1e-6, "ms": 1e-3, "s": 1.0}
    for direction in ("ascending", "descending"):
        headings.nth(time).get_by_role("button").click()
        assert headings.nth(time).get_attribute("aria-sort") == direction
        texts = [cell.split() for cell in read_column(desktop, "opsA-cases", time)]
        seconds = [float(figure) * units[unit] for figure, unit in texts]
        assert len(set(seconds)) > 10
        assert seconds == sorted(seconds, reverse=direction == "descending")
    headings.nth(0).get_by_role("button").click()
    operators = read_column(desktop, "opsA-cases", 0)
    assert operators == sorted(operators)


def test_tables_filter(desktop: OpenPage) -> None:
    line = desktop.page.locator(".filter:has(+ #opsA-cases)")
    line.get_by_role("searchbox").fill("potrf float32 BACK")
    assert set(read_column(desktop, "opsA-cases", 0)) == {"potrf"}
    assert len(read_column(desktop, "opsA-cases", 0)) == 4
    assert line.get_by_role("status").text_content() == "4 of 48 rows"
    line.get_by_role("searchbox").fill("")
    assert len(read_column(desktop, "opsA-cases", 0)) == 48


def test_sentences_count_what_the_table_shows(desktop: OpenPage) -> None:
    card = desktop.page.locator(".card", has_text=re.compile(r"^\s*B: .*against torch"))
    counts = re.search(
        r"in (\d+) of (\d+) cases.*?within 5 % in (\d+); slower in (\d+)",
        " ".join((card.text_content() or "").split()),
    )
    assert counts
    i = read_headings(desktop, "opsB-cases").index("torch") + 1
    speedups = [float(cell.rstrip("×")) for cell in read_column(desktop, "opsB-cases", i)]
    faster, slower = sum(s > 1.05 for s in speedups), sum(s < 1 / 1.05 for s in speedups)
    even = len(speedups) - faster - slower
    assert [int(figure) for figure in counts.groups()] == [faster, len(speedups), even, slower]
    assert card.locator(".cases li").count() == slower


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


# Lightness (0 to 1) of the colours of lines in plots.
LIGHTNESS = """[...document.querySelectorAll('.plot path, .plot use')]
    .map(e => getComputedStyle(e).stroke.match(/^oklab\\(([\\d.]+)/))
    .filter(Boolean).map(m => Number(m[1]))"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast(desktop: OpenPage, scheme: Any) -> None:
    """Text has a contrast of at least 4.5 : 1 (WCAG 2); lines of plots are dark on white, light on black."""
    desktop.page.emulate_media(color_scheme=scheme)
    background = desktop.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(255, 255, 255)") == (scheme == "light")
    assert desktop.evaluate(CONTRAST) == []
    lightness = desktop.evaluate(LIGHTNESS)
    assert len(lightness) > 100
    assert max(lightness) < 0.8 if scheme == "light" else min(lightness) > 0.55
    desktop.page.emulate_media(color_scheme="light")


def test_it_can_be_printed(desktop: OpenPage) -> None:
    assert desktop.page.pdf(print_background=True).startswith(b"%PDF")


@pytest.mark.parametrize("width", WIDTHS)
def test_still_nothing_complains(pages: dict[int, OpenPage], width: int) -> None:
    """There are no messages and no requests after all other tests."""
    assert not pages[width].complaints
    assert len(pages[width].requests) == 1
