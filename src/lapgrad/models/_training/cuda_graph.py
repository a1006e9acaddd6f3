"""A function that is called again and again, recorded as a CUDA graph and replayed.

A training step of a deep model is a thousand small launches, and a GPU spends most of its time waiting for
the host to make them. A CUDA graph makes all of them at once. It repeats what was recorded, address by
address: the function takes no arguments, returns nothing, and reads what differs from call to call from
tensors that are filled before.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Protocol, TextIO

import torch
from torch import nn

from lapgrad._torch import private as _torch_private

Function = Callable[[], None]

#: Calls that are made before one is recorded: kernels are compiled, handles and states of optimisers made.
REHEARSALS = 3
#: What torch says in its mode of looking for synchronisation.
_WAITED = "called a synchronizing CUDA operation"
_PROTOTYPE = "Synchronization debug mode"
#: One recording at a time in a process: each begins with a look at the whole device.
_one_at_a_time = threading.RLock()
_streams = threading.local()


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """For what fits read from a device: not while a call of another thread is watched.

    Torch's mode of looking for synchronisation is one for all threads: it would warn of the reading, too.
    """
    with _one_at_a_time:
        yield


def places(module: nn.Module) -> list[object]:
    """What recordings of a module rely on, and others may change: addresses, and what is learned."""
    tensors = [*module.parameters(), *module.buffers()]
    return [
        [(tensor.data_ptr(), tensor.dtype, tensor.requires_grad) for tensor in tensors],
        [part.training for part in module.modules()],
    ]


class CannotCaptureError(Exception):
    """A function cannot be recorded; the call that says so has computed nothing."""


class Recorder(Protocol):
    """Where functions are rehearsed and recorded.

    Attributes:
        recording: Whether a function is being recorded.
    """

    recording: bool

    def aside(self) -> contextlib.AbstractContextManager[None]:
        """Calls within are made apart from all else, and in their turn."""

    def watched(self, function: Function) -> str | None:
        """Calls the function; why it cannot be recorded, if that has shown."""

    def recorded(self, function: Function) -> Function:
        """Another function that does the same; nothing is computed.

        Raises:
            CannotCaptureError: There is no such function.
        """

    def close(self) -> None:
        """Give all memory back. What was recorded must not be called any more."""


class Repeated:
    """A function that is called as it is a few times, and then as a recording of it.

    Args:
        function: Does the same in every call, with the same tensors.
        recorder: Where.

    Example:
        >>> from lapgrad.models._training.cuda_graph import Repeated
        >>> class Plain:
        ...     recording = False
        ...     def aside(self): return contextlib.nullcontext()
        ...     def watched(self, function): return function()
        ...     def recorded(self, function): return function
        ...     def close(self): pass
        >>> x = torch.zeros(())
        >>> more = Repeated(lambda: x.add_(1.0) and None, Plain())
        >>> for _ in range(5): more()
        >>> x.item(), more.replayed
        (5.0, True)
    """

    def __init__(self, function: Function, recorder: Recorder) -> None:
        self._function, self._recorder = function, recorder
        self._calls = 0
        self._refusal: str | None = None
        self._recording: Function | None = None

    @property
    def replayed(self) -> bool:
        """Whether calls are those of a recording."""
        return self._recording is not None

    def __call__(self) -> None:
        """One call.

        Raises:
            CannotCaptureError: The function cannot be recorded. This call has computed nothing, those before
                were complete.
        """
        if self._recording is not None:
            self._recording()
        elif self._calls < REHEARSALS - 1:
            with self._recorder.aside():
                self._function()
        elif self._calls < REHEARSALS:
            self._refusal = self._recorder.watched(self._function)
        elif self._refusal is not None:
            raise CannotCaptureError(self._refusal)
        else:
            self._recording = self._recorder.recorded(self._function)
            self._recording()
        self._calls += 1


class CudaRecorder:
    """Records CUDA graphs on one device. They share memory: only one may run at a time.

    Args:
        device: A CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = _own_stream(device)
        self._pool = torch.cuda.graph_pool_handle()
        self._graphs: list[torch.cuda.CUDAGraph] = []
        self.recording = False

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """On the stream that graphs are recorded on, after all that was launched before."""
        # Work spaces of libraries belong to a stream: recording must find them there.
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            current.wait_stream(self._stream)

    def watched(self, function: Function) -> str | None:
        """A call, with an eye on what waits for the device: a graph cannot.

        Recording would find out, too, but a recording that fails leaves torch's allocator and generators in
        a state that takes some repair.
        """
        with _one_at_a_time, _noted_waits() as found:
            before = torch.cuda.get_sync_debug_mode()
            torch.cuda.set_sync_debug_mode("warn")
            try:
                with self.aside():
                    function()
            finally:
                torch.cuda.set_sync_debug_mode(before)
        return found[0] if found else None

    def recorded(self, function: Function) -> Function:
        """The replay of a graph, on the stream that is then the current one."""
        graph = torch.cuda.CUDAGraph()
        with _one_at_a_time, torch.cuda.device(self._device):
            current = torch.cuda.current_stream()
            generator = torch.cuda.get_rng_state()
            self.recording = True
            try:
                # Calls that threads of others make meanwhile are no business of this graph. (Those of
                # autograd's thread are launched on this stream, and recorded, in any mode.)
                with torch.cuda.graph(
                    graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
                ):
                    function()
            except BaseException as error:
                torch.cuda.set_stream(current)
                del graph
                _torch_private.forget_capture(torch.cuda.current_device(), self._pool, generator)
                # The end of a recording that has failed raises again, and says less.
                cause = error.__context__ or error
                if not isinstance(cause, Exception):  # an interrupt says nothing about the function
                    raise cause from None
                if not isinstance(error, Exception):
                    raise
                raise CannotCaptureError(f"{type(cause).__name__}: {_first_line(cause)}") from error
            finally:
                self.recording = False
        self._graphs.append(graph)
        return graph.replay

    def close(self) -> None:
        """Wait for what still runs, and free the graphs with their memory."""
        if self._graphs:
            torch.cuda.synchronize(self._device)
        for graph in self._graphs:
            graph.reset()
        self._graphs.clear()
        self._pool = torch.cuda.graph_pool_handle()


@contextlib.contextmanager
def _noted_waits() -> Iterator[list[str]]:
    """Torch's warnings of waits in this thread, in words; those of other threads are not meant."""
    found, own = list[str](), threading.get_ident()
    with warnings.catch_warnings():
        shown = warnings.showwarning

        def noted(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if not str(message).startswith(_WAITED):
                shown(message, category, filename, lineno, file, line)
            elif threading.get_ident() == own:
                found.append(f"{filename}, line {lineno}, waits for the device")

        warnings.showwarning = noted
        warnings.filterwarnings("always", message=_WAITED)
        warnings.filterwarnings("ignore", message=_PROTOTYPE)
        yield found


def _own_stream(device: torch.device) -> torch.cuda.Stream:
    """One per thread and device, for good: cuBLAS keeps 64 MB of work space for each stream it has seen."""
    by_device: dict[torch.device, torch.cuda.Stream] | None = getattr(_streams, "by_device", None)
    if by_device is None:
        by_device = _streams.by_device = {}
    if device not in by_device:
        by_device[device] = torch.cuda.Stream(device)
    return by_device[device]


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0]
