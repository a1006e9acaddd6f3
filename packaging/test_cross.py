"""Compiles the core for other processors and systems, and runs its tests there: ``make test-cross``.

    python packaging/test_cross.py [--targets native linux-aarch64 macos-arm64] [--strict]

For each target the module ``_core`` is compiled and linked from all of ``csrc/`` and nanobind, and the
program ``tests/core/self_test.cpp`` is compiled and, where it can be, run: on this machine, or under qemu
for Linux on aarch64. A program for macOS is compiled and linked only.

What it needs: g++ (native); g++-aarch64-linux-gnu and qemu-user of Debian or Ubuntu (linux-aarch64); the
package ziglang (macos-arm64), whose compiler brings Apple's headers. A target whose tools are missing is
named and left out; with ``--strict`` that is an error.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CORE = ROOT / "csrc"


@dataclass(frozen=True)
class Target:
    """A system and processor to compile for.

    Attributes:
        name: What --targets calls it.
        compiler: The command of the compiler.
        flags: Flags of every file.
        module: Flags that link a Python module.
        program: Flags that link a program.
        run: What runs a program of the target; None where it cannot be run.
        tools: Programs that have to be found, besides the compiler.
    """

    name: str
    compiler: list[str]
    flags: list[str] = field(default_factory=list)
    module: list[str] = field(default_factory=lambda: ["-shared"])
    program: list[str] = field(default_factory=list)
    run: list[str] | None = None
    tools: list[str] = field(default_factory=list)


TARGETS = [
    Target("native", ["g++"], program=["-ldl"], run=[]),
    Target(
        "linux-aarch64",
        ["aarch64-linux-gnu-g++"],
        program=["-ldl"],
        run=["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"],
        tools=["qemu-aarch64"],
    ),
    Target(
        "macos-arm64",
        [sys.executable, "-m", "ziglang", "c++"],
        flags=["-target", "aarch64-macos"],
        # Python's functions are found in the program that loads the module.
        module=["-shared", "-Wl,-undefined,dynamic_lookup"],
    ),
]


def main() -> int:
    """Compile and test the targets; return 0 if all of them, or with missing tools all others, went well."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--targets", nargs="+", choices=[target.name for target in TARGETS])
    parser.add_argument("--strict", action="store_true", help="missing tools are an error")
    arguments = parser.parse_args()
    failed = False
    for target in TARGETS:
        if arguments.targets and target.name not in arguments.targets:
            continue
        missing = find_missing_tools(target)
        if missing:
            print(f"{target.name}: not tried, {' and '.join(missing)} missing")
            failed |= arguments.strict
            continue
        began = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            try:
                outcome = build_and_test(target, Path(folder))
            except subprocess.CalledProcessError as error:
                print(f"{target.name}: failed\n{error.stdout}{error.stderr}")
                failed = True
            else:
                print(f"{target.name}: {outcome} ({time.perf_counter() - began:.0f} s)", flush=True)
    return 1 if failed else 0


def find_missing_tools(target: Target) -> list[str]:
    """Return what the target needs and this machine does not have."""
    missing = [tool for tool in [target.compiler[0], *target.tools] if shutil.which(tool) is None]
    if "ziglang" in target.compiler and importlib.util.find_spec("ziglang") is None:
        missing.append("the package ziglang")
    if importlib.util.find_spec("nanobind") is None:
        missing.append("the package nanobind")
    return missing


def build_and_test(target: Target, folder: Path) -> str:
    """Compile the module and the program, run the program; return what was done."""
    import nanobind

    flags = ["-std=c++17", "-O2", "-fPIC", "-fno-math-errno", "-fno-strict-aliasing", "-fvisibility=hidden"]
    flags += [*target.flags, f"-I{CORE}", "-DLAPGRAD_ISA=baseline", '-DLAPGRAD_VERSION="cross"']
    sources = Path(nanobind.source_dir())
    python = [f"-I{sysconfig.get_path('include')}", f"-I{nanobind.include_dir()}", "-DNB_COMPACT_ASSERTIONS"]
    python.append(f"-I{sources.parent / 'ext' / 'robin_map' / 'include'}")
    core = sorted(CORE.glob("*/*.cpp"))
    units = {path: python if path.parent.name == "bind" else [] for path in core}
    units[sources / "nb_combined.cpp"] = python
    units[ROOT / "tests" / "core" / "self_test.cpp"] = []

    def compile_unit(item: tuple[Path, list[str]]) -> Path:
        path, more = item
        result = folder / f"{path.parent.name}_{path.stem}.o"
        run([*target.compiler, *flags, *more, "-c", str(path), "-o", str(result)])
        return result

    # A thread only waits for its compiler.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = dict(zip(units, pool.map(compile_unit, units.items()), strict=True))
    program = ROOT / "tests" / "core" / "self_test.cpp"
    module = [str(result) for path, result in objects.items() if path != program]
    run([*target.compiler, *target.flags, *target.module, *module, "-o", str(folder / "_core.so")])
    tested = [path for path in core if path.parent.name != "bind"] + [program]
    parts = [str(objects[path]) for path in tested]
    run([*target.compiler, *target.flags, *parts, *target.program, "-o", str(folder / "self_test")])
    if target.run is None:
        return "the module and its tests were compiled and linked, not run"
    return "the module was compiled and linked; " + run([*target.run, str(folder / "self_test")]).strip()


def run(command: list[str]) -> str:
    """Return what a command prints.

    Raises:
        subprocess.CalledProcessError: It failed; the error has its output.
    """
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    sys.exit(main())
