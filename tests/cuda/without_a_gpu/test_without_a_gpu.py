"""Without a GPU, or without NVIDIA's packages: lapgrad imports silently, falls back with one warning."""

from __future__ import annotations

import inspect
import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from fresh_process import get_output
from kernel_packages import in_torch as _fallback

from lapgrad._kernels import cuda as _cuda
from lapgrad._kernels import table as _kernels
from lapgrad._kernels.cuda.runtime import availability as _native
from lapgrad._kernels.cuda.runtime import compiler as _compile

ARCHITECTURE = "sm_90"
STEM, EXPRESSION = "triangle", "copy_rows<double>"


def test_import_is_silent_without_the_packages() -> None:
    """Warnings are errors there, and no package of NVIDIA's can be imported."""
    code = """
import sys
for name in ("cuda", "cuda.core", "cuda.bindings", "nvmath"):
    sys.modules[name] = None
import lapgrad, lapgrad.linalg, lapgrad.fused, torch
from lapgrad._kernels import cuda as _cuda
print(_cuda.is_available(), float(lapgrad.potrf(torch.eye(2)).sum()))
"""
    assert get_output(code).split() == ["False", "2.0"]


def test_import_does_not_load_the_packages() -> None:
    code = """
import sys, torch
by_torch = set(sys.modules)
import lapgrad
from lapgrad._kernels import cuda as _cuda
_cuda.is_available()
print([name for name in ("cuda.core", "cuda.bindings", "nvmath") if name in set(sys.modules) - by_torch])
"""
    assert get_output(code).strip() == "[]"


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> _kernels.KernelTable:
    """The table of CUDA kernels before its first use."""
    monkeypatch.delenv("LAPGRAD_CUDA", raising=False)
    return _kernels.KernelTable(_kernels._collect_cuda, _kernels._run_on_its_device)


def test_missing_packages_are_named_once(table: _kernels.KernelTable) -> None:
    with mock.patch.object(_native, "_is_installed", return_value=False):
        missing = _cuda.list_missing_packages()
        with pytest.warns(RuntimeWarning, match=r"CUDA kernels need .*pip install 'lapgrad\[cuda\]'") as seen:
            found = dict(table.fill())
    assert len(seen) == 1
    assert missing
    assert all(package in str(seen[0].message) for package in missing)
    assert found == vars(_fallback)


def test_switched_off_is_silent(table: _kernels.KernelTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAPGRAD_CUDA", "off")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert table["potrf"] is _fallback.potrf
    assert not _cuda.is_available()


def test_routines_are_replaced_name_by_name(table: _kernels.KernelTable) -> None:
    def own(*_: Any) -> None: ...

    with mock.patch.object(table, "_collect", return_value={"potrf": own}):
        assert table["potrf"] is own
        assert inspect.unwrap(table["gemm"]) is inspect.unwrap(_fallback.gemm)
        assert table["gemm"] is not _fallback.gemm, "it runs on the device of its operands"


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[mock.Mock]:
    """Replace the compiler and the digest by fakes that need no NVRTC, and start with an empty cache."""
    monkeypatch.setenv("LAPGRAD_CACHE", str(tmp_path / "cache"))
    with (
        mock.patch.object(_compile, "_compute_digest", return_value="0123"),
        mock.patch.object(_compile, "compile_source", return_value=(b"machine code", "_symbol")) as compiler,
    ):
        yield compiler


def compile_example() -> tuple[bytes, str]:
    return _compile.compile_or_read(STEM, EXPRESSION, ARCHITECTURE)


def test_directory_of_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LAPGRAD_CACHE", str(tmp_path / "chosen"))
    assert _compile.get_cache_directory() == tmp_path / "chosen"
    monkeypatch.delenv("LAPGRAD_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert _compile.get_cache_directory() == tmp_path / "xdg" / "lapgrad"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert _compile.get_cache_directory() == tmp_path / "home" / ".cache" / "lapgrad"


def test_compiled_once(compiler: mock.Mock, tmp_path: Path) -> None:
    assert compile_example() == compile_example() == (b"machine code", "_symbol")
    compiler.assert_called_once_with(STEM, EXPRESSION, ARCHITECTURE)
    files = {path.suffix: path for path in (tmp_path / "cache").iterdir()}
    assert set(files) == {".cubin", ".json"}, "nothing half-written is left"
    assert files[".cubin"].read_bytes() == b"machine code"
    assert json.loads(files[".json"].read_text())["symbol"] == "_symbol"


def test_never_half_written(compiler: mock.Mock, tmp_path: Path) -> None:
    """A process that is killed while it writes leaves no incomplete file in the cache."""
    with mock.patch.object(os, "replace", side_effect=OSError("no space left")):
        assert compile_example() == (b"machine code", "_symbol")
    assert list((tmp_path / "cache").iterdir()) == []
    assert compile_example() == (b"machine code", "_symbol")
    assert compiler.call_count == 2


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"symbol": 3}', b"\xff\xfe"])
@pytest.mark.parametrize("suffix", [".cubin", ".json"])
def test_a_damaged_file_is_compiled_again(
    compiler: mock.Mock, tmp_path: Path, suffix: str, damage: bytes
) -> None:
    compile_example()
    (file,) = (tmp_path / "cache").glob(f"*{suffix}")
    file.write_bytes(damage)
    assert compile_example() == (b"machine code", "_symbol")
    assert compiler.call_count == 2
    assert compile_example() == (b"machine code", "_symbol")
    assert compiler.call_count == 2, "the damaged file was replaced"


@pytest.mark.parametrize("obstacle", ["a file in its place", "no permission"])
def test_a_cache_that_cannot_be_written(compiler: mock.Mock, tmp_path: Path, obstacle: str) -> None:
    if obstacle == "a file in its place":
        (tmp_path / "cache").write_text("")
    refused = PermissionError if obstacle == "no permission" else None
    with mock.patch.object(_compile.tempfile, "mkstemp", side_effect=refused):
        assert compile_example() == (b"machine code", "_symbol")
        assert compile_example() == (b"machine code", "_symbol")
    assert compiler.call_count == 2
