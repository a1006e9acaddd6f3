"""What a user installs: metadata, shipped files, build switches, files for citation and workflows."""

import ast
import importlib
import inspect
import re
import tomllib
import typing
from importlib import metadata, resources
from pathlib import Path

import pytest
from fresh_process import run
from public import OPERATORS

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


def build_rule(condition):
    (rule,) = (rule for rule in PYPROJECT["tool"]["scikit-build"]["overrides"] if rule["if"] == condition)
    return rule


def test_wheels_carry_the_examples():
    packages = build_rule({"state": "wheel"})["wheel"]["packages"]
    sources = {name: f"src/{name}" for name in ("lapgrad", "lapgrad_bench", "lapgrad_autoload")}
    assert packages == {**sources, "lapgrad/examples": "examples"}
    assert list((ROOT / packages["lapgrad/examples"]).glob("*.py"))


def test_an_older_torch_is_refused_in_one_sentence():
    (oldest,) = re.findall(r"torch>=([\d.]+)", " ".join(PYPROJECT["project"]["dependencies"]))
    older = f"2.{int(oldest.split('.')[1]) - 1}.1+cu128"
    failed = run(f"import torch; torch.__version__ = {older!r}; import lapgrad").stderr
    assert failed.splitlines()[-1] == (
        f"ImportError: lapgrad needs torch {oldest} or newer, found {older}: pip install 'torch>={oldest}'"
    )


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


def test_wheels_use_the_stable_abi_where_python_has_it():
    assert PYPROJECT["tool"]["scikit-build"]["wheel"]["py-api"] == "cp312"
    assert "STABLE_ABI" in (ROOT / "CMakeLists.txt").read_text()
    assert build_rule({"env": {"LAPGRAD_NO_CORE": True}})["wheel"]["py-api"] == "py3"


def test_versions_of_python_are_the_same_everywhere():
    classifiers = {
        line.rsplit(" ", 1)[1]
        for line in PYPROJECT["project"]["classifiers"]
        if re.search(r":: 3\.\d+$", line)
    }
    wheels = (ROOT / ".github" / "workflows" / "wheels.yml").read_text()
    assert {f"3.{minor}" for minor in re.findall(r"cp3(\d+)-cp3\1/bin", wheels)} == classifiers
    assert PYPROJECT["project"]["requires-python"] == ">=" + min(classifiers)


@pytest.mark.parametrize("name", ["tests", "wheels", "docs"])
def test_workflows_call_targets_of_the_makefile(name):
    workflow = (ROOT / ".github" / "workflows" / f"{name}.yml").read_text()
    (phony,) = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    called = re.findall(r"- run: make (?:-j 2 )?([a-z -]+)", workflow)
    assert called
    assert {target for line in called for target in line.split()} <= set(phony.split())
    for script in re.findall(r"python ([a-z_/]+\.py)", workflow):
        assert (ROOT / script).is_file(), script


def test_citation_agrees_with_the_metadata():
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {PYPROJECT['project']['version']}\n" in citation
    assert f"\nrepository-code: {PYPROJECT['project']['urls']['Repository']}\n" in citation
    assert f"\nurl: {PYPROJECT['project']['urls']['Documentation']}\n" in citation
    assert f"\nlicense: {PYPROJECT['project']['license']}\n" in citation


def test_public_functions_have_complete_annotations():
    """py.typed promises them; what is private, as the core, may have fewer."""
    assert (resources.files("lapgrad") / "py.typed").is_file()
    for module in ("lapgrad", "lapgrad.linalg", "lapgrad.fused", "lapgrad.models", "lapgrad.models.kernels"):
        found = importlib.import_module(module)
        for name in found.__all__:
            value = getattr(found, name)
            functions = [value] if inspect.isfunction(value) else []
            if inspect.isclass(value):
                functions = [
                    method
                    for method_name, method in vars(value).items()
                    if inspect.isfunction(method) and not method_name.startswith("_")
                ]
            for function in functions:
                if function.__module__.startswith("lapgrad"):
                    parameters = inspect.signature(function).parameters
                    missing = set(parameters) - set(function.__annotations__) - {"self", "cls"}
                    assert not missing, f"{module}.{name}: {function.__qualname__}{missing}"
                    assert "return" in function.__annotations__, f"{module}.{name}"


@pytest.mark.parametrize("name", OPERATORS)
def test_options_decide_the_type_of_the_result(name):
    """A type checker knows from ``vectors=False`` that one tensor is returned."""
    function = OPERATORS[name]
    found = typing.get_overloads(function) or [function]
    assert not [each for each in found if "|" in each.__annotations__["return"]]


def test_licence_is_apache():
    assert PYPROJECT["project"]["license"] == "Apache-2.0"
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text
    assert "APPENDIX: How to apply" in text
