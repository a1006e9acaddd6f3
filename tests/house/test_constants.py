"""Numbers that Python, the compiled core and the CUDA kernels share: one value everywhere.

Python modules with CUDA launches can be imported without a GPU, so every comparison runs on every machine.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from lapgrad._formulas import gaps
from lapgrad._kernels.cuda import sgp_bound
from lapgrad._kernels.cuda.large import kernel_matrix
from lapgrad._kernels.cuda.potrf import _TILE as TILE_OF_POTRF
from lapgrad._kernels.cuda.potri import _TILE as TILE_OF_POTRI
from lapgrad._kernels.cuda.runtime import device, items
from lapgrad._kernels.cuda.small import (
    gelqf,
    gelqf_wide,
    gesvd_medium,
    gesvd_vjp_tiles,
    kalman,
    packing,
    potrf,
    syevd_vjp_tiles,
    tiles,
    triangular,
)
from lapgrad._kernels.native import core, is_available
from lapgrad._kernels.torch.gesvd import NOT_CONVERGED, NOT_FINITE
from lapgrad.ops import _lu

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "csrc"
CUDA = ROOT / "src" / "lapgrad" / "_kernels" / "cuda" / "kernels"

needs_core = pytest.mark.skipif(not is_available(), reason="installed without the compiled core")


def read_cuda_constants(name: str) -> dict[str, float]:
    """Return the ``constexpr`` numbers of one CUDA source file by name."""
    found: dict[str, float] = {}
    for line in re.findall(r"constexpr (?:int|Index|double|float) ([^;]+);", (CUDA / name).read_text()):
        for key, value in re.findall(r"(\w+) = ([^,]+)(?:, |$)", line):
            expression = re.sub(r"\bIndex\((\d+)\)", r"\1", value)
            if re.fullmatch(r"[\w\s.+*/()<-]+", expression) and "template" not in line:
                try:
                    found[key] = eval(expression, {}, dict(found))
                except (NameError, SyntaxError):
                    continue
    return found


def read_core_constants() -> dict[str, Any]:
    return dict(core.constants())


@needs_core
@pytest.mark.parametrize("policy", ["mask", "lorentz", "clamp", "nan"])
def test_numbers_of_policies(policy: str) -> None:
    number = gaps.POLICY_NUMBERS[policy]
    assert number == read_core_constants()[f"policy_{policy}"]
    assert number == read_cuda_constants("spectral_products.cuh")["k" + policy.capitalize()]


@needs_core
def test_rules_for_small_gaps() -> None:
    assert (
        gaps._SAME_SIZE
        == read_core_constants()["svd_same_size"]
        == read_cuda_constants("spectral.cuh")["kSameSize"]
    )
    ones = {dtype: torch.ones((), dtype=dtype) for dtype in (torch.float32, torch.float64)}
    for dtype, name in ((torch.float32, "f32"), (torch.float64, "f64")):
        expected = gaps.compute_close_gap(ones[dtype]).item()
        assert read_core_constants()[f"close_gap_{name}"] == pytest.approx(
            expected, rel=torch.finfo(dtype).eps
        )
    assert read_core_constants()["rounding_units_f64"] == pytest.approx(
        gaps.choose_tolerance(16, torch.float64, None)
    )
    source = (CUDA / "spectral_products.cuh").read_text()
    literals = re.findall(r"return ([\dxp.-]+)f?;", source)
    returned = [float.fromhex(x) if "x" in x else float(x) for x in literals]
    assert read_core_constants()["close_gap_f64"] in returned
    assert read_core_constants()["close_gap_f32"] in [
        torch.tensor(x, dtype=torch.float32).item() for x in returned
    ]


@needs_core
def test_status_codes_of_singular_values() -> None:
    """gesvd_batch.cu and gesvd_medium.cu report the same codes as literals."""
    assert read_core_constants()["svd_not_finite"] == NOT_FINITE
    assert read_core_constants()["svd_not_converged"] == NOT_CONVERGED
    for name in ("gesvd_batch.cu", "gesvd_medium.cu"):
        codes = re.findall(r"report_failure\(failure, item, (\d)\)", (CUDA / name).read_text())
        assert codes == [str(NOT_FINITE), str(NOT_CONVERGED)]


@needs_core
def test_largest_order_whose_factors_are_recomputed() -> None:
    """The core computes a determinant without storing factors only up to the order of a leaf."""
    assert read_core_constants()["leaf"] == _lu.RECOMPUTED


@needs_core
def test_kernels_for_triangles() -> None:
    """Order of handles, kinds of ``reshape_triangle`` and sizes: Python, csrc/gpu/device.h, triangle.cu."""
    mine, theirs = read_core_constants(), read_cuda_constants("triangle.cu")
    kinds = ("mirror_up", "mirror_down", "move_down", "clear_upper", "clear_lower")
    for kind in kinds:
        camel = "k" + kind.title().replace("_", "")
        assert getattr(device, kind.upper()) == mine[f"device_{kind}"] == theirs[camel]
    names = [f"reshape_triangle<{{T}}, {mine[f'device_{kind}']}>" for kind in kinds]
    for name in ("copy_rows", "copy_transposed", "invert_leaves", "merge_inverses"):
        assert mine[f"device_{name}"] == len(names)
        names.append(f"{name}<{{T}}>")
    assert list(device._KERNELS) == names
    for name in ("leaf", "tile", "strip", "depth"):
        assert mine[f"device_{name}"] == theirs["k" + name.capitalize()]
    assert mine["device_threads"] == theirs["kTile"] * theirs["kTileRows"]


@needs_core
def test_kernels_for_spectral_gradients() -> None:
    """Order of handles, and sizes: Python, csrc/gpu/device.h and device_spectral.h, spectral_tiles.cuh."""
    mine, theirs = read_core_constants(), read_cuda_constants("spectral_tiles.cuh")
    assert mine["device_tile"] == theirs["kTile"]
    assert mine["device_threads"] == theirs["kTileThreads"]
    assert theirs["kWarpRows"] == tiles.WARP_ROWS
    source = (CORE / "gpu" / "device_spectral.h").read_text()
    for module, letters in ((syevd_vjp_tiles, "Syevd"), (gesvd_vjp_tiles, "Gesvd")):
        (listed,) = re.findall(rf"enum {letters}Kernel {{ ([^}}]+) }}", source)
        names = [name.removeprefix(f"k{letters}").lower() for name in listed.split(", ")]
        assert [name.partition("<")[0].partition("_")[0] for name in module.KERNELS] == names


def test_sizes_of_tiles_and_panels() -> None:
    panel = read_cuda_constants("batch.cuh")["kPanel"]
    assert {module._PANEL for module in (gelqf, gelqf_wide, potrf, triangular)} == {panel}
    tile = read_cuda_constants("triangle.cu")["kTile"]
    assert tile == TILE_OF_POTRF == TILE_OF_POTRI
    theirs = read_cuda_constants("packing.cu")
    assert (theirs["kPackingTile"], theirs["kPackingThreads"]) == (packing._TILE, packing._THREADS)
    matrix = read_cuda_constants("kernel_matrix.cu")
    assert (matrix["kFillRows"], matrix["kPoints"], matrix["kStep"]) == (
        kernel_matrix.FILL_ROWS,
        kernel_matrix.POINTS,
        kernel_matrix.STEP,
    )
    assert read_cuda_constants("sgp_bound.cu")["kBoundThreads"] == sgp_bound._THREADS
    medium = read_cuda_constants("gesvd_medium.cu")
    assert (
        medium["kRows"],
        medium["kBlock"],
        medium["kSteps"],
    ) == (gesvd_medium._ROWS, gesvd_medium._BLOCK, gesvd_medium._STEPS)


def test_how_a_failure_is_written_into_one_number() -> None:
    nothing = re.search(r"kNothingFailed = (0x\w+);", (CUDA / "triangular_batch.cu").read_text())
    assert nothing is not None
    assert int(nothing.group(1), 16) == items.NOTHING
    theirs = read_cuda_constants("kalman_nll.cu")
    assert (theirs["kCodes"], theirs["kSteps"]) == (kalman._CODES, kalman._STEPS)


def test_thresholds_of_the_core_are_in_one_file() -> None:
    """A number with a name, outside functions, is in base/plan.h.

    Exceptions: sizes of vector registers, which differ by instruction set, sizes that CUDA kernels are
    compiled for, and the rule for signs, which is no threshold of an algorithm.
    """
    exceptions = {"base/plan.h", "small/simd.h", "gpu/device.h", "base/gesvd_types.h"}
    for file in sorted(CORE.glob("*/*.h")):
        if str(file.relative_to(CORE)) not in exceptions:
            pattern = r"^constexpr (?:index_t|std::size_t|int|double) \w+ = [\d(].*"
            found = re.findall(pattern, file.read_text(), re.MULTILINE)
            assert not found, f"{file.name}: {found}"
