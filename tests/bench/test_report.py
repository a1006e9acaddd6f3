"""`lapgrad report`: the page is whole and escaped, and says what the files say; bad files are named."""

from __future__ import annotations

import itertools
import json
import re
import statistics
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import sample_results

from lapgrad import cli
from lapgrad_bench.common.results import Results
from lapgrad_bench.experiments.paper import TABLE2
from lapgrad_bench.report.page import render_page
from lapgrad_bench.report.sources import find_results, group_runs, read_runs

KINDS = tuple(sample_results.MAKERS)
VOID = {"meta", "link", "br", "hr", "input", "wbr"}


class Page(HTMLParser):
    """Text, elements and their attributes; fails where a tag is not closed, or closed by another."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.pieces: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs), f"{tag} has an attribute twice"
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] not in ("style", "script"):
            self.pieces.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.pieces).split())

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def render(tmp_path: Path, *results: Results) -> Page:
    paths = []
    for i, result in enumerate(results):
        paths.append(tmp_path / f"file{i}.json")
        result.write(paths[-1])
    runs, problems = read_runs(paths)
    assert not problems
    return Page(render_page(runs))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Page:
    """A page of all kinds."""
    folder = tmp_path_factory.mktemp("results")
    runs, problems = read_runs(sample_results.write(folder, *KINDS))
    assert not problems
    return Page(render_page(runs))


def test_headings_are_in_order(whole: Page) -> None:
    levels = [int(tag[1]) for tag, _ in whole.elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))


def test_tables_have_captions_and_scroll_in_their_own_box(whole: Page) -> None:
    tables = whole.named("table")
    assert len(tables) >= 6
    assert len(whole.named("caption")) == len(tables)
    boxes = [a for a in whole.named("div") if a.get("class") == "scroll"]
    assert len(boxes) == len(tables)
    captions = {a["id"] for a in whole.named("caption")}
    assert {box["aria-labelledby"] for box in boxes} == captions


def test_plots_say_in_words_what_they_show(whole: Page) -> None:
    plots = [a for a in whole.named("svg") if a.get("aria-hidden") != "true"]
    assert len(plots) > 10
    for attributes in plots:
        assert attributes["role"] == "img"
        assert re.search(r"\d", attributes["aria-label"] or "")


def test_names_are_unique_and_links_lead_somewhere(whole: Page) -> None:
    names = [attributes["id"] for _, attributes in whole.elements if "id" in attributes]
    assert len(names) == len(set(names))
    for link in whole.named("a"):
        assert (link["href"] or "").removeprefix("#") in names


def test_plots_take_their_colours_and_font_from_the_page(whole: Page) -> None:
    """Black is the colour of text; the style sheet says how much white is in other colours."""
    inside = [attributes for tag, attributes in whole.elements if tag in ("path", "use", "text")]
    assert any(attributes.get("stroke") == "currentColor" for attributes in inside)
    for attributes in inside:
        assert "font-family" not in attributes
        for name in ("fill", "stroke"):
            color = attributes.get(name)
            assert color in (None, "none", "currentColor") or "white var(--tint)" in (color or ""), color


def test_nothing_is_fetched(whole: Page) -> None:
    for tag, attributes in whole.elements:
        for name in ("src", "href", "data", "poster", "srcset"):
            value = attributes.get(name)
            assert value is None or value.startswith(("#", "data:")), f"{tag} {name}={value}"
        assert not any(name.startswith("on") or name == "style" for name in attributes), tag
    (policy,) = (a["content"] for a in whole.named("meta") if a.get("http-equiv"))
    assert "default-src 'none'" in (policy or "")


def compute_ratios(results: Results, peer: str) -> dict[tuple[Any, ...], float]:
    """Return the speed-ups over a peer, computed directly from the rows."""
    times: dict[tuple[Any, ...], dict[str, float]] = {}
    for row in results.rows:
        if row["median_s"] is not None:
            key = (row.get("operator") or row["model"], str(row.get("shape") or row["case"]))
            times.setdefault((*key, row["dtype"], row.get("phase")), {})[row["library"]] = row["median_s"]
    return {key: t[peer] / t["lapgrad"] for key, t in times.items() if peer in t and "lapgrad" in t}


@pytest.mark.parametrize("peer", ["torch", "jax"])
def test_counts_are_those_of_the_file(whole: Page, peer: str) -> None:
    found = compute_ratios(sample_results.ops(), peer).values()
    faster, slower = sum(r > 1.05 for r in found), sum(r < 1 / 1.05 for r in found)
    assert faster
    assert slower
    version = {"torch": "2.13.0", "jax": "0.10"}[peer]
    counts = rf"faster than {peer} {version} in (\d+) of (\d+) cases , median ([\d.]+)× [^;]*; "
    counts += r"within 5 % in (\d+) ?; slower in (\d+)"
    (sentence,) = re.findall(counts, whole.text)
    even = len(found) - faster - slower
    assert sentence[:2] == (str(faster), str(len(found)))
    assert float(sentence[2]) == pytest.approx(statistics.median(found), rel=0.02)
    assert sentence[3:] == (str(even), str(slower))


def test_slower_cases_are_named(whole: Page) -> None:
    for key, ratio in compute_ratios(sample_results.ops(), "torch").items():
        shown = f"{key[0]} {key[1].strip('[]').replace(', ', '×')} {key[2]} {key[3]} {ratio:.2f}×"
        shown = re.sub(r" (\d+)×\1 ", r" \1 ", shown)
        assert (shown in whole.text) == (ratio < 1 / 1.05), shown


def test_many_slower_cases_are_named_by_operator(whole: Page) -> None:
    """In the sample results, 32 of 48 cases are slower than JAX."""
    found = compute_ratios(sample_results.ops(), "jax")
    assert "all 32 cases" in whole.text
    for operator in ("gesvd", "syrk", "potrf"):
        slower = [r for key, r in found.items() if key[0] == operator and r < 1 / 1.05]
        text = f"{operator} in {len(slower)} of 16, at worst"
        assert (text in whole.text) == bool(slower)


def test_deep_and_sparse_regression_are_compared_on_the_same_folds(whole: Page) -> None:
    assert "At least as good as the sparse model in 2 of 4 figures ; worse in" in whole.text
    assert "kin8nm, RMSE: 0.1 ± 0, sparse 0.08 ± 0 (2 folds)" in whole.text


def test_bars_and_memory_and_values_are_said(whole: Page) -> None:
    assert "1 of 2 bars reached ; 1 is missed" in whole.text
    assert "gesvd 1024 float64 forward: 0.8×, wanted ≥ 1×" in whole.text
    assert "1 could not be measured here" in whole.text
    assert "Values agree in all 17 comparisons , to 4e−12 at worst" in whole.text
    assert "torch, exact_gp n = 3,200, d = 4 float32: not positive definite" in whole.text


def test_machine_and_command_are_said(whole: Page) -> None:
    facts = (
        "Sample CPU @ 2.80GHz, 2 cores",
        "commit 0123456789ab",
        "torch 2.13.0",
        "2026-11-15T18:00:00+00:00",
    )
    for fact in (*facts, "lapgrad bench ops --ops potrf,syrk,gesvd", "OMP_NUM_THREADS=2", "numpy 2.3.0"):
        assert fact in whole.text
    assert "not compared with tensorflow No module named 'tensorflow'" in whole.text


def test_figures_of_the_paper_stand_beside_ours(whole: Page) -> None:
    assert "power, U = 3,200, RMSE: 3.5" in whole.text
    assert "the paper's 3.08 ± 0.28" in whole.text
    for name, value in TABLE2["SV-DGP"].items():
        assert (f"SV-DGP of the paper {value:g}" in whole.text) == (name in ("5", "10-50"))
    assert "Architecture 5: test log likelihood 315 ± 1.5" in whole.text


def test_operators_that_a_library_failed_on_are_named(tmp_path: Path) -> None:
    results = sample_results.ops()
    failed = results.rows[2]
    failed |= {"median_s": None, "error": "it hangs"}
    text = render(tmp_path, results).text
    assert "No result in 1 case" in text
    assert "jax, potrf 64 float64 forward: it hangs" in text


def test_bars_of_a_gpu_are_shown_with_its_work_alone(whole: Page, tmp_path: Path) -> None:
    results = sample_results.MAKERS["ops"]()
    results.bars[0]["device"] = 7.25
    assert "GPU's work alone" in (shown := render(tmp_path, results).text)
    assert "7.25×" in shown
    assert "GPU's work alone" not in whole.text


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_alone(tmp_path: Path, kind: str) -> None:
    shown = render(tmp_path, sample_results.MAKERS[kind]())
    titles = {"ops": "Operators", "models": "Models", "table1": "Table 1", "table2": "Table 2"}
    titles["deep_gp_regression"] = "Deep Gaussian process regression"
    titles["sweep"] = "Random sizes"
    for other, title in titles.items():
        assert any((a.get("id") == other) for a in shown.named("section")) == (other == kind)
        assert (title in shown.text) == (other == kind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_without_rows(tmp_path: Path, kind: str) -> None:
    results = sample_results.MAKERS[kind]()
    results.rows.clear()
    results.bars.clear()
    assert "file0.json holds no figures" in render(tmp_path, results).text


@pytest.mark.parametrize("kind", KINDS)
def test_a_single_row(tmp_path: Path, kind: str) -> None:
    results = sample_results.MAKERS[kind]()
    del results.rows[1:]
    assert "1 figure from 1 file" in render(tmp_path, results).text


def test_facts_may_be_missing(tmp_path: Path) -> None:
    results = sample_results.ops()
    results.machine, results.command = {}, ""
    shown = render(tmp_path, results)
    assert "a CPU that was not recorded" in shown.text


HOSTILE = '</script><script>alert(1)</script><img src=x onerror="a()"> & \' {{ 1/0 }} $\\frac{$ \x00\ud800'


def add_hostile_html(value: Any) -> Any:
    """Return the value with a piece of hostile HTML added to every text in it."""
    if isinstance(value, str):
        return value + HOSTILE
    if isinstance(value, dict):
        return {key: add_hostile_html(inner) for key, inner in value.items()}
    return [add_hostile_html(inner) for inner in value] if isinstance(value, list) else value


@pytest.mark.parametrize("kind", KINDS)
def test_everything_is_escaped(tmp_path: Path, kind: str) -> None:
    results = sample_results.MAKERS[kind]()
    plain = render(tmp_path, results)
    results.rows = [{**row, **add_hostile_html(row)} for row in results.rows]
    for row in results.rows:
        row["library"] = row.get("library", "").removesuffix(HOSTILE)
    results.machine, results.peers = add_hostile_html(results.machine), add_hostile_html(results.peers)
    results.bars, results.command = add_hostile_html(results.bars), results.command + HOSTILE
    path = tmp_path / f"{kind}.json"
    path.write_text(json.dumps(results.as_dict()))
    runs, problems = read_runs([path])
    assert not problems
    html = render_page(runs)
    html.encode()
    shown = Page(html)
    for tag in ("script", "img", "style"):
        assert len(shown.named(tag)) == len(plain.named(tag))
    assert "<script>alert(1)</script>" in shown.text
    assert len(shown.named("table")) == len(plain.named("table"))


def test_interrupted_busy_and_changed(tmp_path: Path) -> None:
    results = sample_results.ops()
    results.complete = False
    results.machine = sample_results.machine(load_average=[7.5, 1, 1], commit="0123456789ab-dirty")
    text = render(tmp_path, results).text
    assert "file0.json was interrupted" in text
    assert "it began on a busy machine (load 7.5)" in text
    assert "changes that are in no commit (0123456789ab-dirty)" in text


def test_two_files_of_one_machine_are_merged_and_the_newest_counts(tmp_path: Path) -> None:
    old, new = sample_results.ops(), sample_results.ops()
    new.machine = sample_results.machine(date="2026-11-16T09:00:00+00:00")
    new.rows = [row for row in new.rows if row["operator"] == "potrf"]
    for row in new.rows:
        if row["library"] == "torch":
            row["median_s"] *= 10
    shown = render(tmp_path, new, old)
    assert "16 cases are in more than one of file1.json, file0.json: the newest file counts" in shown.text
    assert "in 32 of 48 cases" in shown.text
    assert "to 50.0×" in shown.text
    assert "2026-11-15 to 2026-11-16" in shown.text


def test_two_machines_stand_side_by_side(tmp_path: Path) -> None:
    here, there = sample_results.ops(), sample_results.ops("cuda")
    there.machine = sample_results.machine(
        date="2026-11-16T09:00:00+00:00", cuda={"available": True, "devices": ["Sample GPU"]}
    )
    shown = render(tmp_path, here, there)
    assert "A: Sample GPU" in shown.text
    assert "B: Sample CPU @ 2.80GHz, 2 cores" in shown.text
    assert "A: operators, CUDA, against torch" in shown.text
    assert any(a.get("id") == "ops-overview" for a in shown.named("div"))
    names = [attributes["id"] for _, attributes in shown.elements if "id" in attributes]
    assert len(names) == len(set(names))


def test_two_versions_on_one_machine_are_told_apart(tmp_path: Path) -> None:
    results = [sample_results.ops(), sample_results.ops()]
    results[1].machine = sample_results.machine(commit="ba9876543210")
    paths = [tmp_path / f"{i}.json" for i in range(2)]
    for result, path in zip(results, paths, strict=True):
        result.write(path)
    titles = [group.title for group in group_runs(read_runs(paths)[0], "ops")]
    assert titles[0].endswith("commit 0123456789ab")
    assert titles[1].endswith("commit ba9876543210")


def write_changed_file(tmp_path: Path, name: str, value: Any) -> Path:
    """Return the path of a file in which one field of the third row is replaced or removed."""
    content = sample_results.ops().as_dict()
    if value is ...:
        del content["rows"][2][name]
    else:
        content["rows"][2][name] = value
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("library", ..., "row 3: 'library' is missing"),
        ("median_s", "fast", "row 3: 'median_s' is 'fast'; a number was wanted"),
        ("median_s", -1.0, "row 3: 'median_s' is -1; a positive number was wanted"),
        ("shape", "64x64", "row 3: 'shape' is '64x64'; sizes was wanted"),
        ("shape", [64.5, 64], "row 3: 'shape' is [64.5, 64]; whole numbers were wanted"),
        ("threads", None, "row 3: 'threads' is None; a number was wanted"),
    ],
)
def test_wrong_rows_are_named(tmp_path: Path, name: str, value: Any, message: str) -> None:
    runs, (problem,) = read_runs([write_changed_file(tmp_path, name, value)])
    assert not runs
    assert message in problem.reason


def report(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = cli.main(["report", *arguments])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_without_files_those_of_the_folder_are_taken(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sample_results.write(folder, "ops", "table1")
    (folder / "package.json").write_text("{}")
    (folder / "broken.json").write_text("{")
    code, out, err = report(capsys)
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "report.html:",
        "  ops.json: ops, 144 figures",
        "  table1.json: table1, 9 figures",
    ]
    Page((folder / "report.html").read_text(encoding="utf-8"))


def test_an_empty_folder_says_what_makes_a_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = report(capsys)
    assert code == 1
    assert "no results of lapgrad" in err
    assert "lapgrad bench ops --quick --output bench.json" in err
    assert not (folder / "report.html").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "there is no such file"),
        (b"{", "is not JSON"),
        (b"\xff\xfe\x00", "is not JSON"),
        (b"[1, 2]", "is not a results file of lapgrad"),
        (b'{"lapgrad_results": 99, "kind": "ops"}', "a newer lapgrad wrote it"),
        (b'{"lapgrad_results": 1, "kind": "cooking", "rows": []}', "results of kind 'cooking'"),
        (b"[" * 100_000, "is"),
        (b'{"lapgrad_results": 1, "kind": "ops", "machine": {}, "rows": [{}]}', "row 1: 'shape' is missing"),
    ],
)
def test_files_that_are_no_good(
    folder: Path, capsys: pytest.CaptureFixture[str], content: bytes | None, message: str
) -> None:
    """A bad file alone gives no page; beside good ones the page names it, and the command fails."""
    if content is not None:
        (folder / "bad.json").write_bytes(content)
    code, _, err = report(capsys, "bad.json")
    assert code == 1
    assert message in err
    assert "Traceback" not in err
    assert not (folder / "report.html").exists()
    (good,) = sample_results.write(folder, "table1")
    code, out, err = report(capsys, good.name, "bad.json", "--output", "sub/page.html")
    assert code == 1
    assert "bad.json: left out" in out
    shown = Page((folder / "sub" / "page.html").read_text(encoding="utf-8"))
    assert re.search(rf"Left out: .*{re.escape(message)}", shown.text)


def test_a_broken_file_of_ours_is_found_and_named(folder: Path) -> None:
    (path,) = sample_results.write(folder, "ops")
    path.write_bytes(path.read_bytes()[:2000])
    assert find_results(Path()) == [Path("ops.json")]
    assert "is not JSON" in read_runs(find_results(Path()))[1][0].reason


@pytest.mark.parametrize("package", ["jinja2", "matplotlib", "matplotlib.style"])
def test_a_missing_package_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    sample_results.write(folder, "table1")
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, "lapgrad_bench.report.svg", raising=False)
    code, _, err = report(capsys)
    assert code == 1
    assert "pip install 'lapgrad[bench]'" in err
    assert not (folder / "report.html").exists()


def test_results_are_not_overwritten(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (path,) = sample_results.write(folder, "ops")
    before = path.read_bytes()
    code, _, err = report(capsys, "ops.json", "--output", str(path))
    assert code == 1
    assert "is one of the results" in err
    assert path.read_bytes() == before


def test_a_page_that_cannot_be_written(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sample_results.write(folder, "table1")
    code, _, err = report(capsys, "--output", str(folder))
    assert code == 1
    assert "cannot be written: Is a directory" in err


@pytest.mark.parametrize("there", [True, False])
def test_open(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda url: opened.append(url) or there)
    sample_results.write(folder, "table1")
    code, _, err = report(capsys, "--open")
    assert code == 0
    assert opened == [(folder / "report.html").resolve().as_uri()]
    assert ("no browser was found" in err) == (not there)
