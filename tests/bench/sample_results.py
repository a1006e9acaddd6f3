"""Results files as commands write them, made up: for tests of what reads them."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

from lapgrad_bench.common.results import Kind, Results

MACHINE: dict[str, Any] = {
    "date": "2026-11-15T18:00:00+00:00",
    "load_average": [0.1, 0.1, 0.1],
    "environment": {"OMP_NUM_THREADS": "2"},
    "threads": 2,
    "versions": {"lapgrad": "0.1.0", "torch": "2.13.0", "numpy": "2.3.0"},
    "commit": "0123456789ab",
    "lapgrad": {"version": "0.1.0", "commit": "0123456789ab", "python": "3.11.2", "platform": "Linux"},
    "torch": {"version": "2.13.0", "threads": 2},
    "cpu": {"model": "Sample CPU @ 2.80GHz", "cores": 2, "cores_allowed": 2},
    "cuda": {"available": False},
}

SPEEDUPS = {
    ("potrf", "forward"): 2.0,
    ("potrf", "backward"): 5.0,
    ("syrk", "forward"): 1.02,
    ("syrk", "backward"): 1.8,
    ("gesvd", "forward"): 0.8,
    ("gesvd", "backward"): 1.3,
}
"""How many times faster than torch; against JAX all of it is half as much."""

SIZES = (64, 256, 1024)
_RATES = {"potrf": 30e9, "syrk": 50e9, "gesvd": 4e9}


def machine(**changes: Any) -> dict[str, Any]:
    """Return the machine above, with other facts."""
    return {**MACHINE, **changes}


def timing(median: float, spread: float = 0.02, samples: int = 25) -> dict[str, Any]:
    """Return the fields of a measured time."""
    return {
        "median_s": median,
        "low_s": median * (1 - spread),
        "high_s": median * (1 + spread),
        "samples": samples,
    }


def ops(device: str = "cpu") -> Results:
    """Three operators at three sizes and a batch, both dtypes, forward and backward, three libraries."""
    results = Results(
        "ops",
        command="lapgrad bench ops --ops potrf,syrk,gesvd --output ops.json",
        complete=True,
        machine=machine(),
        peers={
            "jax": {"version": "0.10", "python": "3.11.2"},
            "tensorflow": {"missing": "No module named 'tensorflow'"},
        },
    )
    shapes = [[n, n] for n in SIZES] + [[1000, 8, 8]]
    for (operator, phase), shape, dtype in itertools.product(SPEEDUPS, shapes, ("float64", "float32")):
        items, n = (shape[0] if len(shape) == 3 else 1), shape[-1]
        flops = items * n**3 * (1 / 3 if phase == "forward" else 2 / 3)
        ours = flops / (_RATES[operator] * (1 if dtype == "float64" else 2)) + 2e-6
        times = {"lapgrad": ours, "torch": ours * SPEEDUPS[operator, phase]}
        times["jax"] = 0.5 * times["torch"]
        for library, median in times.items():
            results.rows.append(
                {
                    "operator": operator,
                    "shape": shape,
                    "dtype": dtype,
                    "device": device,
                    "threads": 2,
                    "phase": phase,
                    "library": library,
                    **timing(median),
                    "flops": flops,
                    "bytes": 8 * items * n * n,
                    "gemm_fraction": flops / median / 110e9,
                    "extra_bytes": 8 * items * n * n if library == "lapgrad" else None,
                }
            )
    results.bars += [
        bar("potrf 1024 float64 backward", "≥", 4.0, 5.0, True),
        bar("gesvd 1024 float64 forward", "≥", 1.0, 0.8, False),
        bar("potrf 4096 float64 backward, extra peak memory", "≤", 1.1, None, None, " n²"),
    ]
    return results


def bar(
    what: str, sense: str, wanted: float, figure: float | None, passed: bool | None, unit: str = "×"
) -> dict[str, Any]:
    """Return a bar: a figure that was to be reached, and whether it was."""
    return {"what": what, "wanted": wanted, "sense": sense, "figure": figure, "unit": unit, "passed": passed}


def models() -> Results:
    """A sparse Gaussian process over U, an exact one over n; GPy is slow and takes memory; one peer fails."""
    results = Results("models", command="lapgrad bench models", complete=True, machine=machine())
    results.peers["GPyTorch"] = {"version": "1.15", "python": "3.11.2"}
    for (model, name), i in itertools.product((("sparse_gp", "U"), ("exact_gp", "n")), range(4)):
        size = 50 * 4**i
        for library, factor in (("lapgrad", 1.0), ("torch", 2.5), ("GPyTorch", 3.0)):
            results.rows.append(
                {
                    "model": model,
                    "case": {name: size, "d": 4},
                    "dtype": "float64",
                    "device": "cpu",
                    "threads": 2,
                    "library": library,
                    **timing(factor * (1e-3 + 2e-7 * size**2)),
                    "extra_bytes": factor * (1e5 + 24 * size**2),
                    "value": 1234.5 * (1 + (0 if library == "lapgrad" else 1e-12 * (i + 1))),
                }
            )
    failed = {**results.rows[-2], "dtype": "float32", "median_s": None, "error": "not positive definite"}
    results.rows += [{**results.rows[-3], "dtype": "float32"}, failed]
    return results


def table1() -> Results:
    """Two data sets at two sizes, three folds each."""
    source = random.Random(0)
    results = Results("table1", command="lapgrad reproduce table1", complete=True, machine=machine())
    means = {("power", 50): (3.9, -2.78), ("power", 3200): (3.5, -2.7), ("kin8nm", 50): (0.088, 0.98)}
    for (dataset, inducing), (rmse, tll) in means.items():
        for fold in range(3):
            results.rows.append(
                {
                    "dataset": dataset,
                    "inducing": inducing,
                    "fold": fold,
                    "seed": fold,
                    "optimizer": "adam",
                    "steps": 3000,
                    "rmse": rmse * (1 + 0.01 * source.uniform(-1, 1)),
                    "tll": tll + 0.01 * source.uniform(-1, 1),
                    "seconds": 40.0 + fold,
                    "seconds_per_step": 0.014,
                    "device": "cpu",
                    "dtype": "float64",
                    "noise": 0.05,
                    "loss": 123.0,
                }
            )
    return results


def table2() -> Results:
    """Learning curves of two architectures, tested at the end."""
    results = Results("table2", command="lapgrad reproduce table2", complete=True, machine=machine())
    for arch, best in (("5", 315.0), ("10-50", 690.0)):
        common = {"arch": arch, "device": "cpu", "dtype": "float32"}
        for i in range(30):
            step = 100 * (i + 1)
            elbo = best - 20 - 600 * 0.8**i
            results.rows.append(
                {**common, "step": step, "epoch": step / 100, "seconds": 3.0 * i, "elbo": elbo}
            )
        tested = {"test_ll": best, "test_ll_standard_error": 1.5, "samples": 1000}
        results.rows.append({**common, "step": 3000, "epoch": 30, "seconds": 95.0, **tested})
    return results


def deep_gp_regression() -> Results:
    """Two data sets, two folds, both models: the deep one is better on power, worse on kin8nm."""
    results = Results("deep_gp_regression", machine=machine(), complete=True)
    results.command = "lapgrad reproduce deep_gp_regression"
    figures = {
        ("power", "sparse"): (3.9, -2.8),
        ("power", "deep"): (3.8, -2.7),
        ("kin8nm", "sparse"): (0.08, 1.1),
        ("kin8nm", "deep"): (0.1, 0.9),
    }
    for (dataset, model), (rmse, tll) in figures.items():
        for fold in range(2):
            case = {"dataset": dataset, "fold": fold, "model": model, "inducing": 100, "layers": 2, "seed": 0}
            learned = {"rmse": rmse, "tll": tll, "seconds": 60.0, "seconds_per_step": 0.012}
            results.rows.append({**case, **learned, "steps": 5000, "dtype": "float64", "device": "cpu"})
    # A fold of one model alone is compared with nothing.
    results.rows.append({**results.rows[-1], "fold": 7, "rmse": 100.0})
    return results


def sweep() -> Results:
    """Two operators at a few random sizes; gesvd is slower than torch at one of them."""
    results = Results("sweep", command="lapgrad bench sweep --seed 1", complete=True, machine=machine())
    cases = {
        ("potrf", (7, 7)): 3.0,
        ("potrf", (900, 12, 12)): 8.0,
        ("gesvd", (30, 81, 40)): 1.5,
        ("gesvd", (575, 12)): 0.7,
    }
    for number, ((operator, shape), faster) in enumerate(cases.items()):
        case = {"operator": operator, "shape": list(shape), "dtype": "float64", "device": "cpu", "threads": 2}
        for phase in ("forward", "backward"):
            for library, seconds in (("lapgrad", 1e-3), ("torch", 1e-3 * faster)):
                times = timing(seconds)
                results.rows.append({**case, "phase": phase, "library": library, "number": number, **times})
    return results


MAKERS = {
    "ops": ops,
    "sweep": sweep,
    "models": models,
    "table1": table1,
    "table2": table2,
    "deep_gp_regression": deep_gp_regression,
}


def write(folder: Path, *kinds: Kind) -> list[Path]:
    """One file of each kind."""
    paths = []
    for kind in kinds:
        paths.append(folder / f"{kind}.json")
        MAKERS[kind]().write(paths[-1])
    return paths
