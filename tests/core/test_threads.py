"""Threads: PyTorch's pool is the only one; calls from many threads at once; the GIL is released."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from fresh_process import get_output
from samples import OPERATORS, join_results
from sized import FLAGS, sample
from tolerances import assert_all_close, of_order
from torch import Tensor

import lapgrad
from lapgrad import _blas
from lapgrad._kernels import cpu as _cpu
from lapgrad._torch.synchronisation import may_wait, without_waiting


@pytest.fixture(autouse=True)
def thread_count() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def compute_gradients(f: Any, args: tuple[Tensor, ...]) -> list[Tensor]:
    """Return gradients for a fixed cotangent; one computed from the result would carry over its rounding."""
    leaves = [arg.detach().requires_grad_() for arg in args]
    result = join_results(f(*leaves))
    cotangent = torch.cos(torch.arange(result.numel(), dtype=result.dtype)).view(result.shape)
    return list(torch.autograd.grad(result, leaves, cotangent))


@pytest.mark.skipif(not _cpu.is_available(), reason="needs the compiled core")
def test_number_of_threads_is_that_of_torch_at_any_time() -> None:
    for count in (2, 1, 3, 2):
        torch.set_num_threads(count)
        assert _cpu.core.threads() == count


@pytest.mark.skipif(not _cpu.is_available(), reason="needs the compiled core")
def test_number_of_threads_belongs_to_the_calling_thread() -> None:
    """torch.set_num_threads counts for the thread that calls it, as in PyTorch itself."""
    torch.set_num_threads(3)
    seen: list[tuple[int, int]] = []

    def work() -> None:
        for count in (1, 2):
            torch.set_num_threads(count)
            seen.append((_cpu.core.threads(), torch.get_num_threads()))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(1, 1), (2, 2)]
    assert _cpu.core.threads() == torch.get_num_threads()


@pytest.mark.parametrize("count", [1, 2, 3])
def test_results_do_not_depend_on_the_number_of_threads(count: int) -> None:
    """Other numbers of threads cut other tiles and slices, so results are equal up to rounding."""
    torch.set_num_threads(count)
    for name in FLAGS:
        for n, batch in ((300, ()), (150, (3,)), (12, (50,))):
            one = sample(name, n, {}, batch=batch)
            case = OPERATORS[name]
            units = of_order(n) * case.condition(n)
            assert_all_close(join_results(case.fn(*one.args)), join_results(case.reference(*one.args)), units)


@pytest.mark.parametrize("count", [1, 2])
def test_calls_from_many_threads(count: int) -> None:
    """Every thread has its own scratch memory: lanes, leaves, panels and BLAS run at the same time."""
    sizes: tuple[tuple[int, tuple[int, ...]], ...] = ((9, (30,)), (31, ()), (100, ()), (160, (2,)))
    work = [
        (OPERATORS[name], sample(name, n, {}, batch=batch).args, n) for name in FLAGS for n, batch in sizes
    ]
    expected = [
        (join_results(case.reference(*args)), compute_gradients(case.reference, args))
        for case, args, _ in work
    ]
    gate = threading.Barrier(6)

    def run(worker: int) -> None:
        torch.set_num_threads(count)
        gate.wait()
        for step in range(len(work)):
            position = (step * 5 + worker * 3) % len(work)
            case, args, n = work[position]
            result, wanted = expected[position]
            units = of_order(n) * case.condition(n)
            assert_all_close(join_results(case.fn(*args)), result, units)
            assert_all_close(compute_gradients(case.fn, args), wanted, units)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(run, range(6)))


@pytest.mark.parametrize("name", ["potrf", "trsm", "trmm", "syrk", "gemmt"])
def test_gil_is_released(name: str) -> None:
    """While one thread is inside a kernel, another one runs and records times during the call."""
    torch.set_num_threads(1)
    args = sample(name, 1200, {}).args
    moments: list[float] = []
    ended = threading.Event()

    def note() -> None:
        while not ended.wait(0.001):
            moments.append(time.perf_counter())

    def was_noted() -> bool:
        begin = time.perf_counter()
        OPERATORS[name].fn(*args)
        end = time.perf_counter()
        margin = 0.2 * (end - begin)
        return any(begin + margin < moment < end - margin for moment in moments)

    OPERATORS[name].fn(*args)
    thread = threading.Thread(target=note)
    thread.start()
    try:
        # On a busy machine the other thread may not get a processor for the time of one call.
        assert any(was_noted() for _ in range(20))
    finally:
        ended.set()
        thread.join()


def test_no_second_pool() -> None:
    """Once torch has started its threads, lapgrad starts no others: at any size, forward and backward."""
    code = """
import os, torch, lapgrad
from sized import FLAGS, sample
from samples import OPERATORS, join_results
torch.set_num_threads(2)
X = torch.randn(400, 400, dtype=torch.float64)
(X @ X).requires_grad_().sum().backward()
torch.linalg.cholesky(X @ X.mT + 400 * torch.eye(400, dtype=torch.float64))
warm = len(os.listdir("/proc/self/task"))
for name in FLAGS:
    for n, batch in ((400, ()), (200, (3,)), (10, (500,))):
        args = [arg.requires_grad_() for arg in sample(name, n, {}, batch=batch).args]
        result = OPERATORS[name].fn(*args)
        result = join_results(result)
        result.sum().backward()
print(warm, len(os.listdir("/proc/self/task")), lapgrad._kernels.cpu.core.threads())
"""
    warm, after, threads = map(int, get_output(code).split())
    assert threads == 2
    assert after == warm


def test_pool_is_the_one_of_torch() -> None:
    """One OpenMP runtime is in the process, and it is the one that lapgrad's loops run on."""
    code = """
import torch, lapgrad
from lapgrad import _blas
lapgrad.potrf(torch.eye(3))
with open("/proc/self/maps") as maps:
    runtimes = {line.split()[-1] for line in maps if "gomp" in line or "iomp" in line or "libomp" in line}
print(len(runtimes), _blas.describe()["thread_pool"] in runtimes)
"""
    assert get_output(code).split() == ["1", "True"]


@pytest.mark.skipif(not _cpu.is_available(), reason="needs the compiled core")
def test_inside_a_parallel_region_loops_are_serial() -> None:
    """Called from all threads of a team of the pool, each call stays on its thread."""
    torch.set_num_threads(2)
    A = sample("potrf", 200, {}, batch=(3,)).args[0]
    expected = torch.linalg.cholesky(A)
    pool = ctypes.CDLL(_blas.describe()["thread_pool"])
    seen: list[tuple[int, int, Tensor]] = []

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    def member(_: None) -> None:
        seen.append((threading.get_native_id(), _cpu.core.threads(), lapgrad.potrf(A)))

    pool.GOMP_parallel(member, None, 2, 0)
    assert len({thread for thread, _, _ in seen}) == 2
    for _, threads, factor in seen:
        assert threads == 1
        assert_all_close(factor, expected, of_order(200))


def test_backward_in_many_graphs_at_once() -> None:
    torch.set_num_threads(2)
    A = sample("potrf", 150, {}).args[0]
    (expected,) = compute_gradients(torch.linalg.cholesky, (A,))

    def backward(_: int) -> Tensor:
        return compute_gradients(lapgrad.potrf, (A,))[0]

    with ThreadPoolExecutor(4) as pool:
        for gradient in pool.map(backward, range(12)):
            assert_all_close(gradient, expected, of_order(150))


def _run_in_child(queue: Any, A: Tensor) -> None:
    torch.set_num_threads(1)  # as a DataLoader does in its workers: a forked OpenMP has no threads
    queue.put((os.getpid(), _cpu.core.threads(), float(lapgrad.sumlogdiag(lapgrad.potrf(A)))))


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_forked_worker() -> None:
    """A process forked after the pool has started works on one thread, as with PyTorch itself."""
    torch.set_num_threads(2)
    A = sample("potrf", 200, {}).args[0]
    expected = float(lapgrad.sumlogdiag(lapgrad.potrf(A)))
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    worker = context.Process(target=_run_in_child, args=(queue, A))
    worker.start()
    worker.join(60)
    assert worker.exitcode == 0
    pid, threads, value = queue.get()
    assert pid != os.getpid()
    assert threads == 1
    assert value == pytest.approx(expected)


def test_work_is_shared_out() -> None:
    """With two threads both take part: a call uses more processor time than the calling thread does."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one processor")
    code = """
import time, torch, lapgrad
torch.set_num_threads(2)
A = torch.eye(8, dtype=torch.float64).expand(200_000, 8, 8).contiguous()
lapgrad.potrf(A)
best = 0.0
for _ in range(20):
    mine, all_of_us = time.thread_time(), time.process_time()
    lapgrad.potrf(A)
    best = max(best, (time.process_time() - all_of_us) / (time.thread_time() - mine))
print(best)
"""
    assert float(get_output(code, OMP_WAIT_POLICY="passive", LAPGRAD_CONTENTION="off")) > 1.2


def test_a_thread_that_does_not_wait_for_a_device_leaves_others_alone() -> None:
    """While one thread is in ``without_waiting``, others still check; no backward pass does."""
    found: dict[str, bool] = {}
    tensor = torch.zeros((), requires_grad=True)
    result = tensor.exp()
    result.register_hook(lambda _: ask("backward"))

    def ask(name: str) -> None:
        found[name] = may_wait()

    def use_another_thread() -> None:
        ask("another")
        result.backward()
        ask("another, after its backward")

    with without_waiting():
        thread = threading.Thread(target=use_another_thread)
        thread.start()
        thread.join(5.0)
        ask("own")
    expected = {"another": True, "backward": False, "another, after its backward": True, "own": False}
    assert found == expected
    assert may_wait()
