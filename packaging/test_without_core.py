"""Installs lapgrad without its core, and runs its LU operators where torch's own hang or are wrong.

    python packaging/test_without_core.py [--repeats 100] [--threads 8]

``LAPGRAD_NO_CORE=1 pip install`` puts a pure Python lapgrad into a temporary folder; torch is that of the
environment. There ``inverse``, ``det`` and ``slogdet`` of batches are computed on 1 to 8 threads, each 100
times, and compared with what one matrix at a time gives on one thread. A process that is stuck for a minute
is ended, and named. Takes about three minutes on a quiet machine.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SHAPES = ((3, 150, 150), (6, 260, 260))
#: Seconds for one repetition, which takes a fraction of one.
LIMIT = 60

PROGRAM = """
import sys
# The finder of an editable lapgrad in this environment would come before every path.
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in repr(finder)]
import faulthandler, torch, lapgrad
from lapgrad._kernels import cpu

assert sys.argv[1] in lapgrad.__file__, lapgrad.__file__
assert not cpu.is_available(), "lapgrad has a core"
limit, threads, repeats, *shape = map(int, sys.argv[2:])
n = shape[-1]
generator = torch.Generator().manual_seed(n)
# Condition numbers of about 3: errors are a few times sqrt(n) roundings.
A = torch.randn(shape, generator=generator, dtype=torch.float64) / n**0.5 + 2 * torch.eye(n)
allowed = 20 * n**0.5 * torch.finfo(A.dtype).eps

def evaluate(A):
    return lapgrad.inverse(A), lapgrad.det(A), *lapgrad.slogdet(A)

torch.set_num_threads(1)
expected = [torch.stack(parts) for parts in zip(*[evaluate(item) for item in A])]
torch.set_num_threads(threads)
worst = 0.0
for _ in range(repeats):
    faulthandler.dump_traceback_later(limit, exit=True)
    for found, right in zip(evaluate(A), expected):
        worst = max(worst, float((found - right).abs().max() / right.abs().max()))
assert worst <= allowed, f"an error of {worst:.1e}, allowed are {allowed:.1e}"
print(f"largest error {worst:.1e}")
"""


def main() -> int:
    """Install, run all shapes on all numbers of threads, and return how many went wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--threads", type=int, default=8)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder]
        subprocess.run(
            [*install, "--no-build-isolation", str(ROOT)],
            check=True,
            env=make_environment(LAPGRAD_NO_CORE="1"),
        )
        failed = 0
        for shape in SHAPES:
            for threads in range(1, options.threads + 1):
                failed += not run(folder, threads, options.repeats, shape)
    print(f"{failed} failed" if failed else "all right")
    return failed


def run(folder: str, threads: int, repeats: int, shape: tuple[int, ...]) -> bool:
    """Run the program on a number of threads, print one line, and return whether it went well."""
    command = [sys.executable, "-W", "ignore::RuntimeWarning", "-c", PROGRAM, folder]
    start = time.monotonic()
    done = subprocess.run(
        [*command, *map(str, (LIMIT, threads, repeats, *shape))],
        env=make_environment(PYTHONPATH=folder, OMP_WAIT_POLICY="passive"),
        capture_output=True,
        text=True,
    )
    is_right = done.returncode == 0
    if is_right:
        said = done.stdout.strip()
    elif "Timeout" in done.stderr:
        said = f"a repetition was not finished after {LIMIT} s"
    else:
        said = done.stderr.strip().splitlines()[-1]
    size = "x".join(map(str, shape))
    print(f"{size}, {threads} threads: {said} ({time.monotonic() - start:.0f} s)", flush=True)
    return is_right


def make_environment(**changes: str) -> dict[str, str]:
    """Return this environment without settings of lapgrad, and with changes."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LAPGRAD_")}
    kept.pop("OMP_NUM_THREADS", None)
    return {**kept, **changes}


if __name__ == "__main__":
    sys.exit(main())
