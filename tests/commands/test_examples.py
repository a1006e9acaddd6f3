"""Every example runs, in its reduced form, draws, and becomes a notebook."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from lapgrad import cli
from lapgrad.demo import examples

EXAMPLES = {
    path.stem: path for path in sorted((Path(__file__).resolve().parents[2] / "examples").glob("*.py"))
}


@pytest.fixture(autouse=True)
def _without_a_display(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No window opens, figures do not pile up, and the folder and the random numbers are the test's own."""
    pyplot = pytest.importorskip("matplotlib.pyplot")
    monkeypatch.chdir(tmp_path)
    with torch.random.fork_rng():
        pyplot.switch_backend("Agg")
        yield
    pyplot.close("all")


def test_there_are_examples():
    assert {
        "bayesian_linear_regression",
        "network_plus_blr",
        "least_squares",
        "pca_lda_cca",
    } <= EXAMPLES.keys()
    assert [example.name for example in examples.find_examples()] == list(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_runs_in_its_reduced_form(name, tmp_path, capsys):
    assert cli.main(["demo", name, "--quick", "--output", str(tmp_path / "figures")]) == 0
    *found, last = capsys.readouterr().out.splitlines()
    assert found, "an example says what it has found"
    figures = sorted((tmp_path / "figures").glob("*.png"))
    assert last == " ".join(["written:", *map(str, figures)])
    assert figures
    assert all(figure.read_bytes().startswith(b"\x89PNG") for figure in figures)
    assert not [path for path in tmp_path.iterdir() if path.name != "figures"], "written outside of --output"


@pytest.mark.parametrize("name", EXAMPLES)
def test_becomes_a_notebook(name, tmp_path):
    assert cli.main(["demo", name, "--notebook", str(tmp_path / "notebook.ipynb")]) == 0
    content = json.loads((tmp_path / "notebook.ipynb").read_text())
    assert (content["nbformat"], content["nbformat_minor"]) == (4, 5)
    cells = content["cells"]
    assert len({cell["id"] for cell in cells}) == len(cells)
    assert sum(cell["cell_type"] == "markdown" for cell in cells) >= 2
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    for text in code:
        compile(text, name, "exec")
    # Cell by cell it is the script, after the line that sets its arguments.
    script = ast.parse(EXAMPLES[name].read_text())
    whole = ast.parse("\n".join(code[1:]))
    statements = script.body[1:] if ast.get_docstring(script) else script.body
    assert [ast.dump(node) for node in whole.body] == [ast.dump(node) for node in statements]


@pytest.mark.parametrize("name", EXAMPLES)
def test_data_dir_is_accepted_and_passed_on_to_scripts_that_have_it(name, tmp_path, monkeypatch, capsys):
    passed = []
    monkeypatch.setattr(examples.Example, "run", lambda example, arguments: passed.extend(arguments))
    assert cli.main(["demo", name, "--data-dir", str(tmp_path)]) == 0
    has_option = "--data-dir" in EXAMPLES[name].read_text()
    assert passed == (["--data-dir", str(tmp_path)] if has_option else [])
    assert ("no effect" in capsys.readouterr().err) == (not has_option)
