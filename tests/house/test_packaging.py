"""What a user meets first: metadata, shipped files, the README's code, documented build switches."""

import ast
import re
import tomllib
from importlib import metadata, resources
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
README = (ROOT / "README.md").read_text()


def test_installed_version_is_the_one_in_pyproject():
    assert metadata.version("lapgrad") == PYPROJECT["project"]["version"]


def test_console_script_exists():
    (script,) = metadata.entry_points(group="console_scripts", name="lapgrad")
    assert callable(script.load())


def test_extras():
    assert {"cuda", "models", "bench", "test", "docs"} <= PYPROJECT["project"]["optional-dependencies"].keys()


def test_build_needs_neither_torch_nor_blas():
    required = {re.split(r"[<>=~!\[ ]", line)[0] for line in PYPROJECT["build-system"]["requires"]}
    assert required == {"scikit-build-core", "nanobind"}


def test_data_are_shipped_with_their_provenance():
    data = resources.files("lapgrad") / "data"
    tables = [file.name for file in data.iterdir() if file.name.endswith(".csv")]
    assert tables
    for name in tables:
        assert "Source:" in (data / name.replace(".csv", ".md")).read_text()


def test_the_report_is_shipped_with_its_templates_style_and_script():
    folder = resources.files("lapgrad_bench") / "report"
    for name in ("style.css", "page.js", "templates/page.html.j2", "templates/sections/ops.html.j2"):
        assert (folder / name).read_text(encoding="utf-8")
    # Wheels carry what git does not ignore.
    ignored = (ROOT / ".gitignore").read_text().split()
    files = {"*.css", "*.js", "*.j2", "templates", "report", "report/", "src/lapgrad_bench/report/"}
    assert not files & set(ignored)


@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", README, re.DOTALL))
def test_readme_code_runs(code, capsys):
    exec(compile(code, "README.md", "exec"), {"__name__": "readme"})
    assert "tensor" in capsys.readouterr().out


def test_readme_links_exist():
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


def build_rule(condition):
    (rule,) = (rule for rule in PYPROJECT["tool"]["scikit-build"]["overrides"] if rule["if"] == condition)
    return rule


def test_wheels_carry_the_examples():
    packages = build_rule({"state": "wheel"})["wheel"]["packages"]
    sources = {name: f"src/{name}" for name in ("lapgrad", "lapgrad_bench", "lapgrad_autoload")}
    assert packages == {**sources, "lapgrad/examples": "examples"}
    assert list((ROOT / packages["lapgrad/examples"]).glob("*.py"))


def test_the_switch_for_an_installation_without_compiler_works_and_is_documented():
    override = build_rule({"env": {"LAPGRAD_NO_CORE": True}})
    assert override["wheel"]["cmake"] is False
    assert "option(LAPGRAD_NO_CORE" in (ROOT / "CMakeLists.txt").read_text()
    for document in (README, (ROOT / "GLOSSARY.md").read_text()):
        assert "LAPGRAD_NO_CORE=1" in document


def test_every_environment_variable_is_in_the_glossary():
    glossary = (ROOT / "GLOSSARY.md").read_text()
    for file in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                for variable in re.findall(r"\bLAPGRAD_[A-Z]+\b", node.value):
                    assert variable in glossary, f"{variable} ({file.name})"


def test_core_is_linked_to_neither_blas_nor_openmp():
    text = (ROOT / "CMakeLists.txt").read_text()
    (linked,) = re.findall(r"target_link_libraries\(_core PRIVATE (.*)\)", text)
    assert linked == "${CMAKE_DL_LIBS}"
    assert "find_package(OpenMP" not in text
    assert "find_package(BLAS" not in text


def test_makefile_commands_are_described():
    makefile = (ROOT / "Makefile").read_text()
    (phony,) = re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    described = set(re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE))
    assert set(phony.split()) == described


def test_licence_is_apache():
    assert PYPROJECT["project"]["license"] == "Apache-2.0"
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text
    assert "APPENDIX: How to apply" in text
