"""Documentation: every public name is explained; every operator has samples, a benchmark and its lines."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import samples
from public import FUNCTIONS_OF_A_KERNEL, OF_A_KERNEL, OPERATORS

import lapgrad
from lapgrad_bench.bench.ops import cases

ROOT = Path(__file__).resolve().parents[2]
SECTIONS = ("Args", "Returns", "Raises", "Gradient", "Memory", "Cost", "Example")


FLAGS = sorted(
    {
        parameter.name
        for operator in (*OPERATORS.values(), *FUNCTIONS_OF_A_KERNEL.values())
        for parameter in inspect.signature(operator).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
)


def split_sections(name: str) -> dict[str, str]:
    """Return the sections of a docstring by title; the text before the first one has the title ""."""
    function = {**OPERATORS, **FUNCTIONS_OF_A_KERNEL}[name]
    parts = re.split(r"^(\w+):\n", inspect.getdoc(function) or "", flags=re.MULTILINE)
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


def read_document(name: str) -> str:
    return (ROOT / name).read_text()


def test_the_search_for_operators_finds_them() -> None:
    assert {"potrf", "potrf_ex", "maketrian"} <= OPERATORS.keys()
    assert {"lower", "overwrite", "alpha"} <= set(FLAGS)


@pytest.mark.parametrize("name", [*OPERATORS, *FUNCTIONS_OF_A_KERNEL])
def test_sections(name: str) -> None:
    found = split_sections(name)
    assert tuple(found) == ("", *SECTIONS)
    assert all(text.strip() for text in found.values())
    assert len(found[""].splitlines()[0]) < 110


def find_equation(headline: str) -> tuple[str, str]:
    """Return both sides of the equation after the colon of a headline; it ends before a comma or in words."""
    formula = headline.partition(": ")[2].removesuffix(".")
    depth = 0
    for position, letter in enumerate(formula):
        depth += (letter in "([{") - (letter in ")]}")
        assert depth >= 0, "a bracket is closed that was not opened"
        if depth == 0 and formula[position:].startswith((", ", "; ", " with ", " for ")):
            formula = formula[:position]
            break
    assert formula.count("(") == formula.count(")"), "brackets are not balanced"
    left, _, right = formula.partition(" = ")
    return left.strip(), right.strip()


def find_symbols(formula: str) -> set[str]:
    """Return the names in a formula without indices and transposition: an entry a_ij counts as a and A."""
    named = re.findall(r"(?<!\^)(?<!\^-)[A-Za-z][A-Za-z]*(?:_(?:\w+|\{[^}]*\})|\[[^]]*\])?", formula)
    stems = {re.split(r"[_\[]", symbol)[0] for symbol in named}
    entries = {re.split(r"[_\[]", symbol)[0].upper() for symbol in named if "_" in symbol}
    return stems | entries


def find_results(returns: str) -> set[str]:
    """Return the names of the results: "X, (*batch, ...)", "L, or R with ...", "The named tuple (U, S)"."""
    several = re.search(r"named tuple \(([^)]*)\)", returns)
    if several:
        return set(several.group(1).split(", "))
    return set(re.findall(r"(?:^|or )(\w+)(?=,| with)", returns.strip().splitlines()[0]))


#: What formulas use without an explanation: ta, tb and t transpose if the flag says so, tri takes a triangle.
FUNCTIONS = {
    "t",
    "ta",
    "tb",
    "tri",
    "diag",
    "det",
    "log",
    "exp",
    "sum",
    "max",
    "argmin",
    "tr",
    "pi",
    "N",
    "I",
    "p",
}


def test_the_search_for_equations() -> None:
    assert find_equation("Product: C = alpha ta(A) B, or C = B with x.") == ("C", "alpha ta(A) B")
    assert find_equation("Anything else with a = b") == ("", "")
    assert find_symbols("b_ij + log(x) - y[0] + a_{i, i+1}") == {"b", "B", "log", "x", "y", "a", "A"}
    assert find_results("L, or R with ``lower=False``: the factor") == {"L", "R"}
    assert find_results("The named tuple (Q, L), both (*batch, n, n).") == {"Q", "L"}


@pytest.mark.parametrize("name", [*OPERATORS, *FUNCTIONS_OF_A_KERNEL])
def test_first_line_is_a_formula(name: str) -> None:
    """An equation between results and operands, all of whose symbols are explained in the docstring."""
    found = split_sections(name)
    headline, _, text = found[""].partition("\n")
    left, right = find_equation(headline)
    assert left, "there is no equation after a colon"
    assert right
    symbols = find_symbols(left) | find_symbols(right)
    assert find_results(found["Returns"]) & symbols, "the equation does not name the result"
    function = {**OPERATORS, **FUNCTIONS_OF_A_KERNEL}[name]
    operands = {p.name for p in inspect.signature(function).parameters.values() if p.annotation == "Tensor"}
    described = find_symbols(headline.partition(": ")[2] + text)
    assert operands & described, "the description does not name an operand"
    definitions = re.findall(r", (\w+) = ", headline.partition(right)[2])
    explained = {*FUNCTIONS, *definitions, *find_symbols(text + "".join(found[key] for key in SECTIONS))}
    for symbol in symbols - {symbol.upper() for symbol in symbols if symbol.lower() in symbols}:
        assert symbol in explained, f"{symbol} is not explained"


@pytest.mark.parametrize("name", OPERATORS)
def test_arguments(name: str) -> None:
    """Every parameter in its order, tensors with their shape."""
    described = re.findall(r"^    (\w+): (.*)$", split_sections(name)["Args"], re.MULTILINE)
    parameters = inspect.signature(OPERATORS[name]).parameters
    assert [argument for argument, _ in described] == list(parameters)
    for argument, text in described:
        if parameters[argument].annotation == "Tensor":
            assert text.startswith("(*batch"), f"the shape of {argument}"


@pytest.mark.parametrize("name", OPERATORS)
def test_exceptions(name: str) -> None:
    """All errors that a docstring names exist, and it names those that any operator may raise."""
    named = set(re.findall(r"\b\w+Error\b", split_sections(name)["Raises"]))
    assert named <= set(lapgrad.__all__)
    assert {"DTypeError", "ShapeError"} <= named
    if len(samples.OPERATORS[name].operands) > 1:
        assert "DeviceError" in named


@pytest.mark.parametrize("name", [*OPERATORS, *FUNCTIONS_OF_A_KERNEL])
def test_gradient_says_what_is_saved(name: str) -> None:
    assert re.search(r"\bSaves\b", " ".join(split_sections(name)["Gradient"].split()))


@pytest.mark.parametrize("name", OPERATORS)
def test_example_calls_the_operator(name: str) -> None:
    assert re.search(rf">>> .*\blapgrad\.{re.escape(name)}\(", split_sections(name)["Example"])


@pytest.mark.parametrize("name", OPERATORS)
def test_operator_has_samples_a_benchmark_and_its_lines(name: str) -> None:
    assert name in samples.OPERATORS, "no row in tests/samples/"
    assert name in cases.OPERATORS, "no row in src/lapgrad_bench/bench/ops/cases.py"
    assert re.search(rf"`{re.escape(name)}\(", read_document("GLOSSARY.md")), "no line in GLOSSARY.md"
    assert f"`{name}`" in read_document("CHANGELOG.md"), "no line in CHANGELOG.md"


def test_files_that_contributing_names_exist() -> None:
    """CONTRIBUTING lists at most ten files for one operator, and all of them exist."""
    (steps,) = re.findall(
        r"^## Adding an operator\n(.*?)^### ", read_document("CONTRIBUTING.md"), re.MULTILINE | re.DOTALL
    )
    files = re.findall(r"^\| \d+ \| `([^`]+)` \|", steps, re.MULTILINE)
    assert 1 < len(files) <= 10
    for file in files:
        assert "gesv" in read_document(file), file


@pytest.mark.parametrize("name", FUNCTIONS_OF_A_KERNEL)
def test_function_of_a_kernel_has_tests_and_its_lines(name: str) -> None:
    """Functions that take a kernel have no rows in the tables of samples and benchmarks."""
    assert f"lapgrad.{name}(" in split_sections(name)["Example"]
    assert (ROOT / "tests" / OF_A_KERNEL[name]).exists()
    assert f"`{name}(" in read_document("GLOSSARY.md"), "no line in GLOSSARY.md"
    assert f"`{name}`" in read_document("CHANGELOG.md"), "no line in CHANGELOG.md"
    described = re.findall(r"^    (\w+): ", split_sections(name)["Args"], re.MULTILINE)
    assert described == list(inspect.signature(FUNCTIONS_OF_A_KERNEL[name]).parameters)


@pytest.mark.parametrize("name", OPERATORS)
def test_benchmark_counts_the_work(name: str) -> None:
    """More work for larger matrices, forward and backward, in the unit of the docstring."""
    row = cases.OPERATORS[name]
    for work in (row.forward, row.backward):
        assert 0 < work(8, 8) < work(16, 16)
    assert ("flop" in split_sections(name)["Cost"]) == (row.unit == "flop")


def test_tables_have_no_other_rows() -> None:
    assert samples.OPERATORS.keys() == cases.OPERATORS.keys() == OPERATORS.keys()


@pytest.mark.parametrize("flag", FLAGS)
def test_flag_is_in_the_glossary(flag: str) -> None:
    (table,) = re.findall(r"^## Flags\n(.*?)^## ", read_document("GLOSSARY.md"), re.MULTILINE | re.DOTALL)
    assert f"`{flag}`" in table


@pytest.mark.parametrize("name", OPERATORS)
def test_samples_name_the_operands(name: str) -> None:
    parameters = inspect.signature(OPERATORS[name]).parameters.values()
    operands = tuple(p.name for p in parameters if p.annotation == "Tensor")
    case = samples.OPERATORS[name]
    assert case.operands == operands
    assert (case.overwrites is not None) == any(p.name == "overwrite" for p in parameters)


@pytest.mark.parametrize("name", OPERATORS)
def test_samples_use_every_flag(name: str) -> None:
    """Both values of a switch, and more than one of a number."""
    used: dict[str, set[Any]] = {}
    for recipe in samples.OPERATORS[name].recipes:
        for flag, value in recipe.flags.items():
            used.setdefault(flag, set()).add(value)
    for parameter in inspect.signature(OPERATORS[name]).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.name != "overwrite":
            assert len(used.get(parameter.name, set()) | {parameter.default}) > 1, parameter.name


@pytest.mark.parametrize("name", [name for name in lapgrad.__all__ if name != "__version__"])
def test_public_name_has_a_docstring(name: str) -> None:
    value = getattr(lapgrad, name)
    assert value.__doc__
    if inspect.isclass(value):
        assert inspect.getdoc(value) not in [inspect.getdoc(base) for base in value.__bases__]


def list_public_objects() -> dict[str, Any]:
    """Return all public names of the package, and the methods of its classes, by their full names."""
    found: dict[str, Any] = {}
    modules = ("", ".linalg", ".fused", ".models", ".models.kernels", ".models.likelihoods")
    for module in (*modules, ".models.components", ".distributed", ".sklearn"):
        namespace = importlib.import_module(f"lapgrad{module}")
        for name in namespace.__all__:
            value = getattr(namespace, name)
            found[f"lapgrad{module}.{name}"] = value
            if inspect.isclass(value):
                own = {method: of for method, of in vars(value).items() if method[0] != "_"}
                found.update({f"lapgrad{module}.{name}.{method}": of for method, of in own.items()})
    return found


def test_examples_import_torch_if_they_use_it() -> None:
    """So that they run where they are pasted."""
    found = list_public_objects()
    assert {"lapgrad.potrf", "lapgrad.models.GPRegression.fit"} <= found.keys()
    prompts = {
        name: "\n".join(re.findall(r"^ *(?:>>>|\.\.\.) (.*)$", value.__doc__ or "", re.MULTILINE))
        for name, value in found.items()
    }
    wrong = [
        name
        for name, code in prompts.items()
        if re.search(r"\btorch\.", code) and not re.search(r"import .*\btorch\b", code)
    ]
    assert not wrong
