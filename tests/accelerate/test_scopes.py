"""Where acceleration holds: process, blocks, decorated functions, threads, async tasks, child processes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from fresh_process import get_output

import lapgrad
from lapgrad.__main__ import run as run_module
from lapgrad.accelerate import overrides as module_of_overrides
from lapgrad.accelerate import registry
from lapgrad.accelerate.choices import Choice
from lapgrad.accelerate.overrides import Overrides

pytestmark = [pytest.mark.cpu, pytest.mark.usefixtures("overrides_removed")]

A = torch.eye(4, dtype=torch.float64).expand(3, 4, 4)


def is_taken(function: str = "cholesky") -> bool:
    """Return whether a call of ``torch.linalg.<function>`` runs on lapgrad now."""
    before = lapgrad.accelerate.stats().taken
    getattr(torch.linalg, function)(A)
    return lapgrad.accelerate.stats().taken > before


def test_process() -> None:
    assert not is_taken()
    lapgrad.accelerate(always=True)
    assert is_taken()
    lapgrad.accelerate.off()
    assert not is_taken()


def test_the_result_of_a_call_shows_what_it_accelerates() -> None:
    assert repr(lapgrad.accelerate(only={"svd", "eigh"})) == "<lapgrad.accelerate: eigh, svd>"
    assert repr(lapgrad.accelerate.off()) == "<lapgrad.accelerate: off>"


#: Runs in a process of its own, because overrides stay installed after they were removed many times.
SWITCHED_OFF = """
import torch, lapgrad

names = [f"aten::{name}" for name in ("linalg_cholesky_ex", "linalg_qr", "linalg_qr.out")]

def kernels():
    return [repr(torch.library.get_kernel(name, key)) for name in names for key in ("CPU", "AutogradCPU")]

own = kernels()
lapgrad.accelerate()
accelerated = kernels()
lapgrad.accelerate.off()
print(accelerated != own, kernels() == own)
"""


def test_off_gives_torch_its_kernels_back() -> None:
    assert get_output(SWITCHED_OFF).split() == ["True", "True"]


def test_block() -> None:
    with lapgrad.accelerate(always=True):
        assert is_taken()
    assert not is_taken()


def test_block_ends_with_an_exception() -> None:
    with pytest.raises(ZeroDivisionError), lapgrad.accelerate(always=True):
        raise ZeroDivisionError
    assert not is_taken()


def test_only() -> None:
    with lapgrad.accelerate(only={"eigh"}, always=True):
        assert is_taken("eigh")
        assert is_taken("eigvalsh")
        assert not is_taken("cholesky")
    with lapgrad.accelerate(only="cholesky", always=True):
        assert is_taken("cholesky")


def test_only_refuses_other_names() -> None:
    with pytest.raises(lapgrad.OptionError, match=r"only.*'cholesky'.*'choleski'"):
        lapgrad.accelerate(only={"choleski"})
    assert not is_taken()


def test_the_innermost_scope_decides() -> None:
    with lapgrad.accelerate(always=True):
        with lapgrad.accelerate(only={"qr"}, always=True):
            assert not is_taken("cholesky")
            assert is_taken("qr")
            with lapgrad.accelerate.off():
                assert not is_taken("qr")
                with lapgrad.accelerate(always=True):
                    assert is_taken("cholesky")
                assert not is_taken("cholesky")
            assert is_taken("qr")
        assert is_taken("cholesky")


def test_block_without_acceleration_in_an_accelerated_process() -> None:
    lapgrad.accelerate(always=True)
    with lapgrad.accelerate.off():
        assert not is_taken()
    assert is_taken()


def test_off_in_an_open_block_is_for_the_process() -> None:
    with lapgrad.accelerate(always=True):
        lapgrad.accelerate.off()
        assert is_taken()
    assert not is_taken()


def test_a_block_in_the_process_leaves_its_choice() -> None:
    lapgrad.accelerate(only={"cholesky"}, always=True)
    with lapgrad.accelerate(only={"qr"}, always=True):
        assert is_taken("qr")
    assert is_taken("cholesky")
    assert not is_taken("qr")


def test_a_scope_can_be_entered_again() -> None:
    scope = lapgrad.accelerate(always=True)
    with scope:
        with scope:
            assert is_taken()
        assert is_taken()
    assert not is_taken()
    with scope:
        assert is_taken()


def test_function() -> None:
    @lapgrad.accelerate(always=True)
    def inside(depth: int) -> bool:
        """Return whether lapgrad takes calls at every level of the recursion."""
        return is_taken() and (depth == 0 or inside(depth - 1))

    assert not is_taken()
    assert inside(2)
    assert (inside.__doc__ or "").startswith("Return whether lapgrad takes calls")
    assert not is_taken()


def test_a_function_outlives_off() -> None:
    inside = lapgrad.accelerate(always=True)(is_taken)
    lapgrad.accelerate.off()
    assert inside()
    assert not is_taken()


def test_generator() -> None:
    @lapgrad.accelerate(always=True)
    def inside() -> Iterator[bool]:
        try:
            yield is_taken()
        except ZeroDivisionError:
            yield is_taken()

    steps = inside()
    assert next(steps)
    assert not is_taken()
    assert steps.throw(ZeroDivisionError())
    assert not is_taken()
    steps.close()


def in_a_thread(function: object) -> object:
    results: list[object] = []
    thread = threading.Thread(target=lambda: results.append(function()))  # type: ignore[operator]
    thread.start()
    thread.join()
    return results[0]


def test_threads() -> None:
    with lapgrad.accelerate(always=True):
        assert is_taken()
        assert not in_a_thread(is_taken)
    lapgrad.accelerate(always=True)
    assert in_a_thread(is_taken)


def test_scopes_of_many_threads() -> None:
    """The same scope object, entered by several threads at a time, and other threads outside of it."""
    scope = lapgrad.accelerate.off()
    shared = lapgrad.accelerate(only={"cholesky"}, always=True)
    with shared:
        pass
    wrong: list[str] = []
    barrier = threading.Barrier(4)

    def work(inside: bool) -> None:
        barrier.wait()
        for _ in range(50):
            if inside:
                with shared:
                    L = torch.linalg.cholesky(A.clone().requires_grad_())
            else:
                L = torch.linalg.cholesky(A.clone().requires_grad_())
            name = type(L.grad_fn).__name__
            if (name == "linalg_cholesky_exBackward") != inside:
                wrong.append(name)

    with scope:
        threads = [threading.Thread(target=work, args=(i % 2 == 0,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def test_constructions_in_two_threads_leave_nothing_behind() -> None:
    """Each block is in force in the process for the moment between its construction and its entry."""
    first, second = lapgrad.accelerate(always=True), lapgrad.accelerate(always=True)
    with first, second:
        assert is_taken()
    assert not is_taken()


def test_async_tasks() -> None:
    @lapgrad.accelerate(always=True)
    async def inside() -> list[bool]:
        found = []
        for _ in range(3):
            found.append(is_taken())
            await asyncio.sleep(0)
        return found

    async def outside() -> list[bool]:
        found = []
        for _ in range(3):
            found.append(is_taken())
            await asyncio.sleep(0)
        return found

    async def both() -> list[list[bool]]:
        return await asyncio.gather(inside(), outside(), inside())

    assert asyncio.run(both()) == [[True] * 3, [False] * 3, [True] * 3]


def test_backward_of_a_block_may_run_after_it() -> None:
    operand = A.clone().requires_grad_()
    with lapgrad.accelerate(always=True):
        L = torch.linalg.cholesky(operand)
    L.sum().backward()
    expected = torch.autograd.grad(torch.linalg.cholesky(operand).sum(), operand)[0]
    torch.testing.assert_close(operand.grad, expected)


def test_compiled_graphs_keep_what_they_were_traced_with() -> None:
    def function(A: torch.Tensor) -> torch.Tensor:
        return torch.linalg.cholesky_ex(A)[0].sum()

    operand = A.clone().requires_grad_()
    with lapgrad.accelerate(always=True):
        compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
        value = compiled(operand)
    torch.testing.assert_close(value, function(operand))
    gradients = [torch.autograd.grad(f(operand), operand)[0] for f in (compiled, function)]
    torch.testing.assert_close(*gradients)


def test_graphs_for_many_sizes_call_torch_by_its_names() -> None:
    def function(A: torch.Tensor) -> torch.Tensor:
        return torch.linalg.cholesky_ex(A)[0].sum()

    with lapgrad.accelerate(always=True):
        compiled = torch.compile(function, backend="aot_eager", fullgraph=True, dynamic=True)
        for items in (3, 5, 7):
            operand = A[:1].expand(items, 4, 4).clone().requires_grad_()
            gradients = [torch.autograd.grad(f(operand), operand)[0] for f in (compiled, function)]
            torch.testing.assert_close(*gradients)


def test_traced_graphs_name_the_operators_of_the_time() -> None:
    def function(A: torch.Tensor) -> torch.Tensor:
        return torch.linalg.cholesky_ex(A)[0]

    make_fx = torch.fx.experimental.proxy_tensor.make_fx
    with lapgrad.accelerate(always=True):
        graph = make_fx(function)(A.clone().requires_grad_())
    assert "lapgrad.linalg_cholesky_ex" in graph.code
    graph = make_fx(function)(A.clone().requires_grad_())
    assert "aten.linalg_cholesky_ex" in graph.code


def test_overrides_stay_while_a_scope_is_open() -> None:
    overrides, choice = Overrides(), Choice(frozenset({"qr"}))
    overrides.install(choice)
    assert ("linalg_qr", "cpu") in overrides.installed
    overrides.open_scope(choice)
    overrides.remove()
    assert overrides.installed
    overrides.close_scope()
    overrides.remove()
    assert not overrides.installed


def test_overrides_stay_after_many_removals() -> None:
    """Each removal keeps some memory, which must not fill up in a program that switches in a loop."""
    made, choice = Overrides(), Choice(frozenset({"qr"}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module_of_overrides, "_MOST_REMOVALS", 3)
        for removals in range(6):
            made.install(choice)
            made.remove()
            assert bool(made.installed) == (removals >= 3)
    made.remove()
    assert not made.installed


SWITCHED_BESIDE_THREADS = """
import threading, time, torch, lapgrad

torch.set_num_threads(1)
is_over, errors = [], []

def work(*shape):
    A = torch.randn(*shape, shape[-1], dtype=torch.float64)
    A = A @ A.mT + shape[-1] * torch.eye(shape[-1], dtype=torch.float64)
    leaf, I = A.clone().requires_grad_(), torch.eye(shape[-1], dtype=torch.float64).expand(A.shape)
    try:
        while not is_over:
            L, Q, eigenvectors = torch.linalg.cholesky(A), torch.linalg.qr(A).Q, torch.linalg.eigh(A)[1]
            torch.testing.assert_close(L @ L.mT, A)
            torch.testing.assert_close(Q.mT @ Q, I)
            torch.testing.assert_close(eigenvectors.mT @ eigenvectors, I)
            torch.testing.assert_close(torch.linalg.solve_triangular(L, L, upper=False), I)
            torch.autograd.grad(torch.linalg.cholesky(leaf).sum(), leaf)
    except Exception as error:
        errors.append(error)

threads = [threading.Thread(target=work, args=shape) for shape in ((4,), (3, 60), (150,), (50, 20))]
for thread in threads:
    thread.start()
for k in range(50):
    lapgrad.accelerate(always=k % 2 == 0)
    time.sleep(0.02 * (k % 3 == 0))
    lapgrad.accelerate.off()
    time.sleep(0.02 * (k % 3 == 1))
is_over.append(True)
for thread in threads:
    thread.join()
print(errors or "right")
"""


def test_switching_beside_threads_that_compute() -> None:
    """torch frees a kernel that is taken back and not kept, also if another thread is about to run it."""
    assert get_output(SWITCHED_BESIDE_THREADS).strip() == "right"


SCRIPT = """
import sys, torch
A = torch.eye(300, requires_grad=True)
print(type(torch.linalg.cholesky(A).grad_fn).__name__, "lapgrad" in sys.modules, sys.argv[1:])
"""


@pytest.mark.parametrize(
    ("prefix", "environment", "expected"),
    [
        ([], {}, "LinalgCholeskyExBackward0 False ['a', '-b']"),
        ([], {"LAPGRAD_ACCELERATE": "1"}, "linalg_cholesky_exBackward True ['a', '-b']"),
        ([], {"LAPGRAD_ACCELERATE": "qr,eigh"}, "LinalgCholeskyExBackward0 True ['a', '-b']"),
        ([], {"LAPGRAD_ACCELERATE": "0"}, "LinalgCholeskyExBackward0 False ['a', '-b']"),
        (["-m", "lapgrad"], {}, "linalg_cholesky_exBackward True ['a', '-b']"),
    ],
    ids=["plain", "variable", "some operators", "switched off", "python -m lapgrad"],
)
def test_programs_that_are_not_edited(
    prefix: list[str], environment: dict[str, str], expected: str, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    clean = {key: value for key, value in os.environ.items() if key != "LAPGRAD_ACCELERATE"}
    done = subprocess.run(
        [sys.executable, *prefix, str(script), "a", "-b"],
        env={**clean, **environment},
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert done.stdout.strip() == expected


def test_commands_still_run_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "lapgrad", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("lapgrad ")


def test_a_script_that_does_not_exist_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_module(["no_such_script.py"]) == 2
    assert "there is no script no_such_script.py" in capsys.readouterr().err


def test_only_operators_that_are_asked_for_have_an_override() -> None:
    overrides = Overrides()
    try:
        overrides.install(Choice(frozenset()))
        assert not overrides.installed
        overrides.install(Choice(frozenset({"qr"})))
        assert overrides.installed == {("linalg_qr", "cpu")}
        overrides.install(Choice(frozenset({"det"})))
        assert overrides.installed == {("linalg_qr", "cpu"), ("_linalg_det", "cpu")}
    finally:
        overrides.remove()


def test_operators_of_which_no_call_would_be_taken_have_no_override(monkeypatch: pytest.MonkeyPatch) -> None:
    never = {"float64": {"forward": [0] * registry.BUCKETS, "gradient": [0] * registry.BUCKETS}}
    monkeypatch.setattr(registry, "load_table", lambda: {"cpu": {"linalg_qr": never}})
    overrides = Overrides()
    names = frozenset({"qr", "svd", "det"})
    try:
        overrides.install(Choice(names))
        assert overrides.installed == {("_linalg_det", "cpu")}  # torch's LU hangs with some batches
        overrides.install(Choice(names, always=True))
        assert overrides.installed == {("_linalg_det", "cpu"), ("linalg_qr", "cpu"), ("_linalg_svd", "cpu")}
    finally:
        overrides.remove()
