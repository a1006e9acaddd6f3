"""Runs the test suites of libraries that call torch.linalg, with and without lapgrad, and compares outcomes.

    python .ci/test_peers.py [--suites linear_operator,gpytorch] [--modes 1,always] [-- pytest options]

The sources of the tests come from the packages' own source distributions; the versions are those installed.
With --checkout botorch=DIR package and tests are those of a checkout: some distributions have no tests.
Exit code 1 if a test passes or fails with lapgrad and not without.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ElementTree
from importlib import metadata
from pathlib import Path

#: Package -> folders of its tests.
SUITES = {
    "linear_operator": ("test",),
    "gpytorch": ("test",),
    "botorch": ("test/models", "test/posteriors", "test/utils", "test/sampling", "test/test_fit.py"),
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--suites", type=lambda text: text.split(","), default=list(SUITES))
    parser.add_argument("--modes", type=lambda text: text.split(","), default=["1"])
    parser.add_argument(
        "--checkout", action="append", default=[], metavar="PACKAGE=DIR", help="test these sources instead"
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=Path("build/peers"))
    parser.add_argument("--timeout", type=float, default=7200.0, help="seconds per suite and mode")
    parser.add_argument("rest", nargs="*", help="options for pytest")
    arguments = parser.parse_args()
    checkouts = dict(text.split("=", 1) for text in arguments.checkout)
    different = 0
    for suite in arguments.suites:
        if suite in checkouts:
            source = Path(checkouts[suite]).resolve()
            os.environ["PYTHONPATH"] = os.pathsep.join(
                filter(None, (str(source), os.environ.get("PYTHONPATH")))
            )
        else:
            source = find_source(suite, arguments.folder)
        without = run_suite(suite, source, None, arguments)
        for mode in arguments.modes:
            different += compare(suite, mode, without, run_suite(suite, source, mode, arguments))
    return 1 if different else 0


def find_source(package: str, folder: Path) -> Path:
    """The unpacked source distribution of the version that is installed; downloaded if it is not there."""
    name = f"{package}-{metadata.version(package)}"
    if not (folder / name / "test").is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        requirement = f"{package}=={metadata.version(package)}"
        download = ["download", "--no-deps", "--no-binary", ":all:", "--dest", str(folder), requirement]
        subprocess.run([sys.executable, "-m", "pip", *download], check=True)
        with tarfile.open(folder / f"{name}.tar.gz") as archive:
            archive.extractall(folder, filter="data")
    return folder / name


def run_suite(suite: str, source: Path, mode: str | None, arguments: argparse.Namespace) -> dict[str, str]:
    """Test -> passed, failed, error or skipped; under ``LAPGRAD_ACCELERATE=mode``."""
    report = (arguments.folder / f"{suite}-{mode or 'without'}.xml").resolve()
    environment = {key: value for key, value in os.environ.items() if key != "LAPGRAD_ACCELERATE"}
    if mode is not None:
        environment["LAPGRAD_ACCELERATE"] = mode
    environment |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    command = [sys.executable, "-m", "pytest", "-q", "-n", str(arguments.workers), "-p", "no:cacheprovider"]
    # The installed package is what is tested, not the sources beside the tests.
    command += ["--import-mode=importlib", "-c", os.devnull, "--rootdir", ".", f"--junit-xml={report}"]
    command += [*SUITES[suite], *arguments.rest]
    subprocess.run(command, cwd=source, env=environment, timeout=arguments.timeout, check=False)
    return read_outcomes(report)


def read_outcomes(report: Path) -> dict[str, str]:
    """The outcome of every test in a report of pytest."""
    outcomes = {}
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case} & {"failure", "error", "skipped"}
        outcomes[f"{case.get('classname')}::{case.get('name')}"] = min(kinds, default="passed")
    return outcomes


def compare(suite: str, mode: str, without: dict[str, str], accelerated: dict[str, str]) -> int:
    """Prints and counts the tests whose outcome differs."""
    names = sorted(without.keys() | accelerated.keys())
    different = [name for name in names if without.get(name) != accelerated.get(name)]
    failures = sum(outcome in ("failure", "error") for outcome in without.values())
    print(
        f"{suite}, LAPGRAD_ACCELERATE={mode}: {len(names)} tests, {failures} failures without lapgrad, ",
        end="",
    )
    print(f"{len(different)} different outcomes with it")
    for name in different:
        print(f"    {name}: {without.get(name)} without, {accelerated.get(name)} with")
    return len(different)


if __name__ == "__main__":
    sys.exit(main())
