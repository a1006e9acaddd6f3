"""Functions that are called many times, recorded once as a CUDA graph and then replayed.

A training step of a deep model makes about a thousand small kernel launches, and the GPU spends most of its
time waiting for the host to make them. Replaying a CUDA graph makes all launches at once. A graph repeats the
recorded launches on the recorded addresses. A function to be recorded therefore takes no arguments, returns
nothing, and reads whatever differs between calls from tensors that the caller fills before each call.
"""

from __future__ import annotations

import contextlib
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch import nn

from lapgrad._torch import private as _torch_private

Function = Callable[[], None]

#: Ordinary calls before the recording: they compile kernels and create library handles and optimiser state.
REHEARSALS = 3
#: One recording at a time in the process: torch synchronises the whole device when a recording starts, which
#: must not happen while another thread records.
_recording_lock = threading.RLock()
#: The side stream of each device, per thread. cuBLAS allocates 64 MB of workspace for every stream it is
#: called on, and torch never frees it, so streams are kept for the next recorder.
_streams = threading.local()


def describe_storage(module: nn.Module) -> list[object]:
    """Return what recordings of a module depend on; they are out of date when this has changed.

    That is: address, dtype and ``requires_grad`` of all parameters and buffers, and all ``training`` flags.
    """
    tensors = [*module.parameters(), *module.buffers()]
    return [
        [(tensor.data_ptr(), tensor.dtype, tensor.requires_grad) for tensor in tensors],
        [part.training for part in module.modules()],
    ]


class CannotCaptureError(Exception):
    """A function cannot be recorded. The call that raises this has computed nothing."""


class Recorder(Protocol):
    """Runs functions for warm-up, and records them.

    Attributes:
        recording: Whether a function is being recorded.
    """

    recording: bool

    def enter_side_stream(self) -> contextlib.AbstractContextManager[None]:
        """Return a context that launches its work where recordings are made, after all earlier work."""

    def record(self, function: Function) -> Function:
        """Call ``function`` without computing anything, and return a function that replays the call.

        Raises:
            CannotCaptureError: The function cannot be recorded.
        """

    def close(self) -> None:
        """Free all memory. Recordings must not be called any more."""


class ReplayableFunction:
    """A function that runs normally in its first calls, and as a replayed recording in all later ones.

    Args:
        function: Does the same in every call, with the same tensors.
        recorder: Records it.

    Example:
        >>> from lapgrad.models._training.cuda_graph import ReplayableFunction
        >>> class Plain:
        ...     recording = False
        ...     def enter_side_stream(self): return contextlib.nullcontext()
        ...     def record(self, function): return function
        ...     def close(self): pass
        >>> x = torch.zeros(())
        >>> add_one = ReplayableFunction(lambda: x.add_(1.0) and None, Plain())
        >>> for _ in range(5): add_one()
        >>> x.item(), add_one.is_recorded
        (5.0, True)
    """

    def __init__(self, function: Function, recorder: Recorder) -> None:
        self._function, self._recorder = function, recorder
        self._calls = 0
        self._recording: Function | None = None

    @property
    def is_recorded(self) -> bool:
        """Whether calls replay a recording."""
        return self._recording is not None

    def __call__(self) -> None:
        """Call the function, or replay its recording.

        Raises:
            CannotCaptureError: The function cannot be recorded. This call has computed nothing; earlier calls
                were complete.
        """
        if self._recording is not None:
            self._recording()
        elif self._calls < REHEARSALS:
            with self._recorder.enter_side_stream():
                self._function()
        else:
            self._recording = self._recorder.record(self._function)
            self._recording()
        self._calls += 1


class CudaRecorder:
    """Records CUDA graphs on one device. The graphs share memory, so only one may run at a time.

    Args:
        device: A CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = _get_side_stream(device)
        self._pool = torch.cuda.graph_pool_handle()
        self._graphs: list[torch.cuda.CUDAGraph] = []
        self.recording = False

    @contextlib.contextmanager
    def enter_side_stream(self) -> Iterator[None]:
        """Launch work on the stream that graphs are recorded on, after all work launched before.

        Libraries allocate one workspace per stream. Rehearsals on the recording's stream make sure that the
        recording finds its workspace there, because nothing can be allocated with cudaMalloc in a graph.
        """
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            current.wait_stream(self._stream)

    def record(self, function: Function) -> Function:
        """Record a call of ``function``, and return the replay: it runs on the stream current at that time.

        Raises:
            CannotCaptureError: The function waits for the device or does something else that a graph cannot
                repeat. The default generator, the allocator and the current stream are as they were before.
        """
        graph = torch.cuda.CUDAGraph()
        with _recording_lock, torch.cuda.device(self._device):
            current = torch.cuda.current_stream()
            generator = torch.cuda.get_rng_state()
            self.recording = True
            try:
                # "thread_local": launches by other threads of the program do not belong to this graph and do
                # not spoil it. (Autograd's threads launch on this stream, and are recorded in any mode.)
                with torch.cuda.graph(
                    graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
                ):
                    function()
            except BaseException as error:
                torch.cuda.set_stream(current)
                del graph
                _torch_private.forget_capture(torch.cuda.current_device(), self._pool, generator)
                # Ending a failed recording raises a second, less informative error: report the first one.
                cause = error.__context__ or error
                if not isinstance(cause, Exception):  # an interrupt is no fault of the function
                    raise cause from None
                if not isinstance(error, Exception):
                    raise
                raise CannotCaptureError(_describe_failure(cause)) from error
            finally:
                self.recording = False
        self._graphs.append(graph)
        return graph.replay

    def close(self) -> None:
        """Wait for running graphs, then free all graphs with their memory."""
        if self._graphs:
            with _recording_lock:  # while another thread records, waiting for the whole device is an error
                torch.cuda.synchronize(self._device)
        for graph in self._graphs:
            graph.reset()
        self._graphs.clear()
        self._pool = torch.cuda.graph_pool_handle()


def _get_side_stream(device: torch.device) -> torch.cuda.Stream:
    """Return this thread's stream for recordings on ``device``."""
    by_device: dict[torch.device, torch.cuda.Stream] | None = getattr(_streams, "by_device", None)
    if by_device is None:
        by_device = _streams.by_device = {}
    if device not in by_device:
        by_device[device] = torch.cuda.Stream(device)
    return by_device[device]


def _describe_failure(error: Exception) -> str:
    """Return "file, line n: Kind: first line of the message" for the innermost frame of an error."""
    first_line = (str(error).splitlines() or [""])[0]
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{frames[-1].filename}, line {frames[-1].lineno}: " if frames else ""
    return f"{place}{type(error).__name__}: {first_line}"
