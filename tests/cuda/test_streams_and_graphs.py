"""Streams, threads, CUDA graphs and host synchronisation, which need a device."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
import torch
import waits
from tolerances import DEFAULT, assert_all_close, of_order
from torch import Tensor
from torch.autograd import grad

import lapgrad
from lapgrad._kernels import cuda as _cuda

pytestmark = pytest.mark.skipif(
    not (torch.cuda.is_available() and _cuda.is_available()), reason="needs a CUDA device"
)

#: Batches of small matrices, one that cuSOLVER and cuBLAS serve, and one that is done block by block.
SHAPES = [(50, 8, 8), (3, 100, 100), (300, 300), (1100, 1100)]

Function = Callable[[Tensor], object]

#: Functions that need no decision on the host, so that a CUDA graph can record them.
CAPTURED: dict[str, Function] = {
    "potrf": lambda A: lapgrad.potrf(A),
    "potrf_ex": lambda A: lapgrad.potrf_ex(A)[0],
    "potri": lambda A: lapgrad.potri(lapgrad.potrf_ex(A)[0]),
    "trsm": lambda A: lapgrad.trsm(A.tril(), A),
    "trmm": lambda A: lapgrad.trmm(A.tril(), A),
    "syrk": lambda A: lapgrad.syrk(A),
    "gemmt": lambda A: lapgrad.gemmt(A, A),
    "copyltu": lambda A: lapgrad.copyltu(A),
    "sumlogdiag": lambda A: lapgrad.sumlogdiag(A),
    "extracttrian": lambda A: lapgrad.extracttrian(A, lower=False),
    "maketrian": lambda A: lapgrad.maketrian(A.flatten(-2)[..., : A.shape[-1] * (A.shape[-1] + 1) // 2]),
    "gelqf": lambda A: lapgrad.gelqf(A),
    "logdet_psd": lambda A: lapgrad.linalg.logdet_psd(A),
}
ALL: dict[str, Function] = {
    **CAPTURED,
    "syevd": lambda A: lapgrad.syevd(A)[1],
    "gesvd": lambda A: lapgrad.gesvd(A)[1],
    "inverse": lambda A: lapgrad.inverse(A),
    "slogdet": lambda A: lapgrad.slogdet(A)[1],
}


def make_positive_definite(shape: tuple[int, ...], seed: int = 0) -> Tensor:
    X = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (X @ X.mT / shape[-1] + torch.eye(shape[-1])).cuda()


def select_first(result: object) -> Tensor:
    """One result of the operator."""
    one = result if isinstance(result, Tensor) else result[0]  # type: ignore[index]
    assert isinstance(one, Tensor)
    return one


def compute_with_gradient(f: Function, A: Tensor) -> tuple[Tensor, Tensor]:
    A = A.detach().requires_grad_()
    result = select_first(f(A))
    (gA,) = grad(result, A, torch.ones_like(result))
    return result.detach(), gA


@pytest.fixture
def side_stream() -> Iterator[torch.cuda.Stream]:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    yield stream
    torch.cuda.synchronize()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", ALL)
def test_follows_the_current_stream(
    name: str, shape: tuple[int, ...], side_stream: torch.cuda.Stream
) -> None:
    """The operand is written late on a side stream: a kernel on another stream would read old numbers."""
    A = make_positive_definite(shape)
    expected = compute_with_gradient(ALL[name], A)
    late = torch.eye(shape[-1], dtype=torch.float64, device="cuda").expand(shape).contiguous()
    torch.cuda.synchronize()
    with torch.cuda.stream(side_stream):
        torch.cuda._sleep(20_000_000)
        late.copy_(A)
        found = compute_with_gradient(ALL[name], late)
    side_stream.synchronize()
    assert_all_close(found, expected, DEFAULT * of_order(shape[-1]))


@pytest.mark.parametrize("shape", [(50, 8, 8), (300, 300)], ids=str)
def test_threads_with_streams_of_their_own(shape: tuple[int, ...]) -> None:
    """Threads that run at the same time do not share library handles or workspaces."""
    names = [name for name in ALL if name not in ("inverse", "slogdet")]
    wrong: list[str] = []

    def work(seed: int) -> None:
        source = make_positive_definite(shape, seed)  # keep it alive: its memory belongs to another stream
        with torch.cuda.stream(torch.cuda.Stream()):
            A = source.clone()
            for _ in range(5):
                for name in names:
                    result, gA = compute_with_gradient(ALL[name], A)
                    torch.cuda.current_stream().synchronize()
                    if not (result.isfinite().all() and gA.isfinite().all()):
                        wrong.append(f"{name}: not finite")
                    key = (name, seed)
                    if key in expected and not torch.allclose(result, expected[key], rtol=1e-9, atol=1e-9):
                        wrong.append(f"{name}: other values beside other threads")

    expected = {
        (name, seed): compute_with_gradient(ALL[name], make_positive_definite(shape, seed))[0]
        for name in names
        for seed in range(4)
    }
    torch.cuda.synchronize()
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, sorted(set(wrong))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", CAPTURED)
def test_captured_in_a_graph(name: str, shape: tuple[int, ...], side_stream: torch.cuda.Stream) -> None:
    """A replay computes value and gradient from the numbers that the operand has at that time."""
    A = make_positive_definite(shape)
    with torch.cuda.stream(side_stream):
        for _ in range(2):
            compute_with_gradient(CAPTURED[name], A)
    torch.cuda.current_stream().wait_stream(side_stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = compute_with_gradient(CAPTURED[name], A)
    for seed in (1, 2):
        other = make_positive_definite(shape, seed)
        A.copy_(other)
        graph.replay()
        torch.cuda.synchronize()
        assert_all_close(found, compute_with_gradient(CAPTURED[name], other), DEFAULT * of_order(shape[-1]))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    "name",
    ["potrf_ex", "trmm", "syrk", "gemmt", "copyltu", "sumlogdiag", "extracttrian", "maketrian"],
)
def test_the_host_does_not_wait(name: str, shape: tuple[int, ...]) -> None:
    """Operators that cannot fail, or that return their status."""
    A = make_positive_definite(shape)
    compute_with_gradient(CAPTURED[name], A)  # compiles, makes handles
    torch.cuda.synchronize()
    with waits.forbid_waits():
        compute_with_gradient(CAPTURED[name], A)
        # The host waits neither in torch nor in the driver: the call returns before the work is done.
        torch.cuda._sleep(200_000_000)
        compute_with_gradient(CAPTURED[name], A)
        assert not torch.cuda.current_stream().query()
    torch.cuda.synchronize()


@pytest.mark.skipif(torch.cuda.is_available() and torch.cuda.device_count() < 2, reason="needs two devices")
@pytest.mark.parametrize("name", ALL)
def test_other_device_than_the_current_one(name: str) -> None:
    A = make_positive_definite((300, 300))
    expected = compute_with_gradient(ALL[name], A)
    result, gA = compute_with_gradient(ALL[name], A.to("cuda:1"))
    assert result.device == gA.device == torch.device("cuda:1")
    assert_all_close((result.to(A.device), gA.to(A.device)), expected, DEFAULT * of_order(300))
