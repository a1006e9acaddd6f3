"""The README: short, its code runs, its table is true, its figures are those of the results file."""

from __future__ import annotations

import importlib.util
import json
import math
import re
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import lapgrad

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
TABLES = {
    "README.md": README,
    "torch_linalg.md": (ROOT / "docs" / "coming_from" / "torch_linalg.md").read_text(),
}


def load(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_is_short_and_names_the_paper_before_it_is_mentioned() -> None:
    assert len(README.splitlines()) <= 120
    mentioned = [match.start() for match in re.finditer("the paper", README)]
    assert README.index("Auto-Differentiating Linear Algebra") < min(mentioned)


def test_code_runs(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) == 2
    first_figures = []
    torch.manual_seed(1)
    for code in blocks:
        exec(compile(code, "README.md", "exec"), {"__name__": "readme"})
        first_figures.append(float(re.findall(r"tensor\(\[*(-?[\d.]+)", capsys.readouterr().out)[0]))
    assert math.isfinite(first_figures[0])
    assert lapgrad.accelerate.stats().taken > 0
    # The model of the last block forecasts half a season.
    assert abs(first_figures[1] - (math.sin(6 * 6.5) + 0.3 * 6.5)) < 0.3


def test_three_changed_lines_compute_the_same() -> None:
    losses = load("docs/figures/measure_three_lines.py").read_losses(README)
    K, y = load("docs/figures/measure_three_lines.py").make_operands(50)
    found = {name: loss(K, y) for name, loss in losses.items()}
    torch.testing.assert_close(found["lapgrad"], found["torch"])
    gradients = [torch.autograd.grad(loss, K)[0] for loss in found.values()]
    torch.testing.assert_close(*gradients)
    # "the whole loss as one operator"
    whole = lapgrad.fused.mvn_nll(K, y)
    torch.testing.assert_close(whole, found["torch"] + 25 * math.log(2 * math.pi))


def list_rows() -> list[tuple[str, str, str]]:
    rows = {}
    for text in TABLES.values():
        for ours in re.findall(r"^\| `([^`]+)` \| `([^`]+)` \|(.*)\|$", text, re.MULTILINE):
            rows[ours[:2]] = ours[2]
    return [(*pair, note) for pair, note in rows.items()]


@pytest.mark.parametrize(("theirs", "ours", "note"), list_rows())
def test_both_sides_of_the_table_compute_the_same(theirs: str, ours: str, note: str) -> None:
    torch.manual_seed(0)
    make = {"dtype": torch.float64}
    M, B = torch.randn(2, 4, 4, **make)
    A = M @ M.mT + torch.eye(4, **make)
    operands = {"A": A, "M": M, "B": B, "L": torch.linalg.cholesky(A), "B5": torch.randn(5, 2, **make)}
    operands["W"] = torch.randn(3, 5, **make)
    found: list[dict[str, Any]] = []
    for code in (theirs, ours):
        names = {**operands, "torch": torch, "lg": lapgrad}
        exec(code, names)
        assigned = re.match(r"([\w, ]+) =", code)
        assert assigned is not None
        found.append({name: names[name] for name in assigned[1].split(", ")})
    shared = found[0].keys() & found[1].keys()
    equations = re.findall(r"`(\w+) == (\w+)\.mT`", note)
    assert shared or equations
    for name in shared:
        pair = found[0][name], found[1][name]
        if equations:  # vectors, up to their signs
            pair = pair[0].abs(), pair[1].abs()
        torch.testing.assert_close(*pair)
    for left, right in equations:
        torch.testing.assert_close(found[1][left].abs(), found[0][right].mT.abs())


def test_the_table_has_the_functions_that_people_replace_most() -> None:
    rows = re.findall(r"^\| `[^`]+` \| `[^`]+` \|", README, re.MULTILINE)
    for name in ("cholesky(", "eigh(", "svd(", "qr(", "solve_triangular(", "cholesky_solve(", "logdet("):
        assert any(name in row for row in rows), name


def test_sentences_and_figures_are_those_of_the_results_file() -> None:
    script = load("docs/figures/draw_speedups.py")
    block = script.BLOCK.search(README)
    assert block is not None
    results = [json.loads(path.read_text()) for path in (script.RESULTS, script.THREE_LINES)]
    wanted = script.write_sentences(*results)
    assert block[0] == f"{block[1]}{wanted}{block[2]}", "run docs/figures/draw_speedups.py"
    newest = (ROOT / "docs" / "figures" / "speedups.png").read_bytes()
    assert newest.startswith(b"\x89PNG")


def test_figures_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    script = load("docs/figures/draw_speedups.py")
    found = script.read_comparisons(json.loads(script.RESULTS.read_text()))
    assert len(found) > 100
    script.draw_bars(found, tmp_path / "bars.png")
    script.draw_heat_map(found, tmp_path / "map.png")
    assert all(path.stat().st_size > 10_000 for path in tmp_path.iterdir())


def test_no_nan_where_it_promises_none() -> None:
    A = torch.eye(3, dtype=torch.float64, requires_grad=True)
    U, w = lapgrad.syevd(A)
    assert torch.autograd.grad((U.mT * w.exp()) @ U, A, torch.ones(3, 3))[0].isfinite().all()
    B = torch.eye(3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.grad(lapgrad.gesvd(B).S.square().sum(), B)[0].isfinite().all()
    with pytest.raises(lapgrad.NotPositiveDefiniteError) as caught:
        lapgrad.potrf(torch.stack([torch.eye(3), torch.diag(torch.tensor([1.0, -1.0, 1.0]))]))
    assert (caught.value.item, caught.value.minor) == ((1,), 2)


def test_links_lead_to_files_here_and_in_packages() -> None:
    targets = re.findall(r"\]\((?!http)([^)#]+)", README)
    assert len(targets) > 10
    for target in targets:
        assert (ROOT / target).exists(), target
    repository = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]
    provider = load("packaging/absolute_links.py")
    text = provider.make_links_absolute(README, repository)
    assert not re.findall(r"\]\((?!https?://)", text)
    assert f"]({repository}/raw/main/docs/figures/speedups.png)" in text
    for target in re.findall(rf"\]\({repository}/(?:blob|raw)/main/([^)]+)\)", text):
        assert (ROOT / target).exists(), target
