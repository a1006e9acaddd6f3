"""Layers: imports point one way, private names of PyTorch live in one place, one stem is one file."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from public import FUNCTIONS_OF_A_KERNEL, OPERATORS

from lapgrad._kernels.table import collect_kernels

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "lapgrad"
BENCH = ROOT / "src" / "lapgrad_bench"
CORE = ROOT / "csrc"

#: From the ground up. A module imports from its own part and from the layers below, never from another part
#: of its own layer. A part is a module or a package; its name is the longest one here that fits.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("lapgrad._exceptions", "lapgrad._quota"),
    ("lapgrad._errors",),
    ("lapgrad._torch", "lapgrad._blas", "lapgrad._core"),
    ("lapgrad._formulas",),
    ("lapgrad._kernels",),
    ("lapgrad._kernels.native",),
    ("lapgrad._kernels.torch",),  # what the kernels of a device leave to plain PyTorch
    ("lapgrad._kernels.cpu", "lapgrad._kernels.cuda"),
    ("lapgrad._kernels.table",),
    ("lapgrad.ops",),
    ("lapgrad._translation",),
    ("lapgrad.linalg",),
    ("lapgrad.distributed",),
    ("lapgrad.fused",),
    ("lapgrad.distributed.blockcyclic", "lapgrad.distributed.dtensors"),
    ("lapgrad.accelerate",),
    ("lapgrad",),
    ("lapgrad.models", "lapgrad.info"),
    ("lapgrad.sklearn", "lapgrad.demo"),
    ("lapgrad.cli",),
    ("lapgrad.__main__",),
    ("lapgrad_bench",),
    ("lapgrad_bench.datasets", "lapgrad_bench.common"),
    ("lapgrad_bench.bench.measure",),
    ("lapgrad_bench.bench.peers",),
    ("lapgrad_bench.bench.ops",),
    ("lapgrad_bench.bench.models",),
    ("lapgrad_bench.bench.watched",),
    ("lapgrad_bench.bench", "lapgrad_bench.experiments"),
    ("lapgrad_bench.report",),
    ("lapgrad_bench.commands",),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}

MODULES = sorted((*PACKAGE.rglob("*.py"), *BENCH.rglob("*.py")))


def get_module_name(file: Path) -> str:
    """``lapgrad.ops.potrf``, or ``lapgrad`` itself."""
    parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def find_part(module: str) -> str:
    """Return the entry of the table that a module belongs to; "" if it belongs to none."""
    part = module
    while part and part not in LEVEL:
        part = part.rpartition(".")[0]
    # A module beside the packages of lapgrad needs an entry of its own.
    return "" if part == "lapgrad" and module != part else part


def list_imports(file: Path) -> Iterator[str]:
    """Yield the modules of lapgrad that a file imports, also inside of functions and by ``import_module``."""
    known = {get_module_name(module) for module in MODULES} | {"lapgrad._core"}
    tree = ast.parse(file.read_text())
    for_types = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in set(ast.walk(tree)) - for_types:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif (
            isinstance(node, ast.ImportFrom) and node.module and re.match(r"lapgrad(_bench)?\b", node.module)
        ):
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in known else node.module
        elif isinstance(node, ast.Constant) and node.value in known - {"lapgrad"}:
            yield node.value


def test_the_search_for_imports_finds_them() -> None:
    kernels = {f"lapgrad._kernels.{package}" for package in ("torch", "cpu", "cuda")}
    kernels |= {f"lapgrad._kernels.cuda.shortcuts.{module}" for module in ("planned", "table")}
    below = {f"lapgrad._torch.{module}" for module in ("precision", "private")}
    assert set(list_imports(PACKAGE / "_kernels" / "table.py")) == kernels | below
    assert "lapgrad.ops.trsm" in set(list_imports(PACKAGE / "ops" / "potrf.py"))
    assert "lapgrad.ops.potrf" in set(list_imports(PACKAGE / "__init__.py"))


@pytest.mark.parametrize("file", MODULES, ids=get_module_name)
def test_imports_point_downwards(file: Path) -> None:
    own = find_part(get_module_name(file))
    assert own in LEVEL, f"{file.name} belongs to no layer"
    for other in list_imports(file):
        part = find_part(other)
        assert part == own or LEVEL[part] < LEVEL[own], f"{get_module_name(file)} imports {other}"


def test_benchmarks_and_experiments_are_independent() -> None:
    """Experiments never import the benchmarks, whose parts lie below them in the table, nor the reverse."""
    for one, other in (("bench", "experiments"), ("experiments", "bench")):
        for file in (BENCH / one).rglob("*.py"):
            found = [name for name in list_imports(file) if name.startswith(f"lapgrad_bench.{other}")]
            assert not found, f"{get_module_name(file)} imports {found}"


def test_no_relative_imports() -> None:
    """Relative imports would escape the tests above."""
    for file in MODULES:
        for node in ast.walk(ast.parse(file.read_text())):
            assert not (isinstance(node, ast.ImportFrom) and node.level), get_module_name(file)


def test_no_circles_below_the_operators() -> None:
    below = {
        get_module_name(file)
        for file in MODULES
        if LEVEL[find_part(get_module_name(file))] < LEVEL["lapgrad.ops"]
    }
    packages = {get_module_name(file) for file in MODULES if file.stem == "__init__"}
    graph = {
        get_module_name(file): set(list_imports(file)) & below - packages
        for file in MODULES
        if get_module_name(file) in below - packages
    }
    while graph:
        free = [name for name, needs in graph.items() if not needs & graph.keys()]
        assert free, f"{', '.join(graph)} import each other in a circle"
        for name in free:
            del graph[name]


#: Of tensors and operators, where PyTorch has no public name. (All other private names: _torch/private.py.)
PRIVATE_ATTRIBUTES = {
    "_base",  # the tensor that a view looks at
    "_is_view",
    "_schema",  # of a registered operator: how many results it has
    "_opname",
}


def list_private_names(file: Path) -> Iterator[str]:
    """Private names of torch that a file imports, and private attributes of anything but its own classes."""
    tree = ast.parse(file.read_text())
    own = {"self", "cls"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = getattr(node, "module", None) or ""
            for alias in node.names:
                path = f"{module}.{alias.name}" if module else alias.name
                if path.startswith("torch") and re.search(r"(^|\.)_[a-zA-Z]", path):
                    yield path
                if path.startswith("lapgrad"):
                    own.add(alias.asname or alias.name)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and re.match(r"_[a-zA-Z]", node.attr):
            base = ast.unparse(node.value)
            if base.split(".")[0] not in own:
                yield f"{base}.{node.attr}"


def test_the_search_for_private_names_finds_them() -> None:
    found = set(list_private_names(PACKAGE / "_torch/private.py"))
    assert "torch._C" in found
    assert "torch.autograd.function._SingleLevelFunction" in found
    assert "_C._len_torch_dispatch_stack" in found


@pytest.mark.parametrize(
    "file",
    [file for file in MODULES if get_module_name(file) != "lapgrad._torch.private"],
    ids=get_module_name,
)
def test_private_names_of_torch_are_in_one_place(file: Path) -> None:
    found = {name for name in list_private_names(file) if name.rpartition(".")[2] not in PRIVATE_ATTRIBUTES}
    assert not found


def test_core_knows_neither_python_nor_torch() -> None:
    sources = sorted(CORE.rglob("*.h")) + sorted(CORE.rglob("*.cpp"))
    assert len(sources) > 10
    for file in sources:
        foreign = re.findall(r"#include\s*[<\"]((?:nanobind|Python|torch|ATen|c10)[^>\"]*)", file.read_text())
        assert not foreign or file.parent.name == "bind", f"{file.name} includes {foreign}"


#: Folders of the core, from the ground up, and what each may include besides itself.
CORE_LAYERS = {
    "base": (),
    "small": ("base",),
    "ops": ("base",),
    "gpu": ("base",),
    "bind": ("base", "ops", "gpu"),
}


def test_bindings_use_the_stable_abi_of_python() -> None:
    """One wheel serves Python 3.12 and later. Names like these compile with 3.11 alone."""
    outside = re.compile(
        r"\bPy\w+_(?:GET|SET|AS)_\w+|\bPy(?:Method|ContextVar|Frame|Code)_\w+|\bPyObject_Call(?:OneArg|MethodNoArgs)"
        r"|\b_Py\w+"
    )
    assert outside.search("PyTuple_GET_ITEM(arguments, 0)")
    for file in sorted((CORE / "bind").glob("*.*")):
        assert not outside.findall(file.read_text()), file.name


def test_folders_of_the_core_are_layers() -> None:
    for file in CORE.glob("*/*"):
        folder = file.parent.name
        for name in re.findall(r'#include "([^"]+)"', file.read_text()):
            allowed = (folder, *CORE_LAYERS[folder])
            assert name.split("/")[0] in allowed, f"{folder}/{file.name} includes {name}"


def test_headers_of_the_core_exist_and_are_included() -> None:
    included = {
        name for file in CORE.glob("*/*") for name in re.findall(r'#include "([^"]+)"', file.read_text())
    }
    assert included == {file.relative_to(CORE).as_posix() for file in CORE.glob("*/*.h")}


def test_one_stem_one_file() -> None:
    """``potrf`` and its variant ``potrf_ex`` are ``ops/potrf.py``, and no file is without its operator."""
    public = {**OPERATORS, **FUNCTIONS_OF_A_KERNEL}
    for folder, prefix in (("ops", ""), ("linalg", "linalg."), ("fused", "fused.")):
        names = {name for name in public if name.rpartition(".")[0] == prefix.rstrip(".")}
        own = {name: name.removeprefix(prefix).removesuffix("_ex") for name in names}
        for name, stem in own.items():
            assert public[name].__module__ == f"lapgrad.{folder}.{stem}"
        stems = {file.stem for file in (PACKAGE / folder).glob("*.py") if not file.stem.startswith("_")}
        assert stems == set(own.values())


def test_folders_are_small() -> None:
    """At most 20 modules besides the files that are named after an operator, one for each."""
    stems = {name.rpartition(".")[2].removesuffix("_ex") for name in {**OPERATORS, **FUNCTIONS_OF_A_KERNEL}}
    modules = Counter(
        file.parent
        for top in ("src", "csrc", "tests")
        for file in (ROOT / top).rglob("*.*")
        if file.suffix in (".py", ".h", ".cpp", ".cu", ".cuh")
        and file.stem != "__init__"
        and not any(file.stem == stem or file.stem.startswith(f"{stem}_") for stem in stems)
    )
    assert {folder for folder, number in modules.items() if number > 20} == set()


#: A lookup of a routine in the table of kernels, and the files that may have one.
LOOKUP = r'\blookup\(\s*"(\w+)"'
OPERATOR_FILES = [
    file for folder in ("ops", "linalg", "fused", "_translation") for file in (PACKAGE / folder).rglob("*.py")
]


def test_every_routine_is_looked_up() -> None:
    """Public functions of kernel modules are routines: helpers belong in private modules."""
    looked_up = set(re.findall(LOOKUP, "".join(file.read_text() for file in OPERATOR_FILES)))
    packages = ("torch", "cpu", "cuda")
    kernels = {name for package in packages for name in collect_kernels(f"lapgrad._kernels.{package}")}
    assert looked_up == kernels


def test_optional_routines_are_asked_for() -> None:
    """A routine that plain PyTorch does not have is looked up only where ``has_kernel`` is asked."""
    in_torch = collect_kernels("lapgrad._kernels.torch").keys()
    for file in OPERATOR_FILES:
        text = file.read_text()
        for name in set(re.findall(LOOKUP, text)) - in_torch:
            assert f'has_kernel("{name.removeprefix("serves_")}"' in text, f"{name} in {file.name}"


def test_everything_bound_is_called() -> None:
    sources = "".join(file.read_text() for file in CORE.glob("bind/*.cpp"))
    bound = re.findall(r'm\.def\("(\w+)", &(?:binding::)?\w+[<)]', sources)
    assert len(bound) > 5
    # constants() is exported for the comparison in that file alone.
    constants = ROOT / "tests" / "house" / "test_constants.py"
    files = (*(PACKAGE / "_kernels").rglob("*.py"), PACKAGE / "_blas.py", constants)
    callers = "".join(file.read_text() for file in files)
    for routine in bound:
        if routine.endswith("_shortcut"):  # listed by that, and tested in tests/core/test_shortcuts.py
            continue
        assert re.search(rf"core\.{routine}\b", callers), routine


@pytest.mark.parametrize("stem", ["potrf", "trsm", "trmm", "gemmt"])
def test_recursions_have_a_header_of_their_name(stem: str) -> None:
    assert (CORE / "ops" / f"{stem}.h").exists()
    assert stem in OPERATORS
