"""Groups of processes: sums over all ranks that carry a status, so that a failure ends all of them.

Everything that ranks exchange is a sum of numbers over all ranks. A sum is announced before the work that
leads to it (``Group.expect_sum``): a rank whose work fails still joins the sum, with its status set, and the
others raise its error instead of waiting for it.
"""

from __future__ import annotations

import atexit
import contextlib
import datetime
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from lapgrad import _exceptions
from lapgrad.distributed import failures as _failures

_Object = TypeVar("_Object")

#: Numbers travel in this dtype: sums over ranks are as precise as those within one.
_DTYPE = torch.float64
#: Status of a rank in a sum. After a numerical error a fit can go on, after any other it cannot.
_WELL, _NUMERICAL, _FATAL = 0.0, 1.0, 2.0


class Group:
    """Processes that each hold a part of the data, and learn together. Pass it as ``group=`` to a model.

    ``init_group`` makes one from the environment of a launcher, ``Group(process_group)`` from a process group
    of torch. All ranks must make it at the same time, and call the same functions with it in the same order.

    Args:
        process_group: Of ``torch.distributed``; None: this process alone.
        timeout: Seconds after which a rank that does not join counts as failed.

    Attributes:
        rank: The number of this process in the group, from 0 on.
        size: How many processes there are.

    Example:
        >>> from lapgrad.distributed import Group
        >>> group = Group()
        >>> group.rank, group.size
        (0, 1)
    """

    def __init__(self, process_group: dist.ProcessGroup | None = None, *, timeout: float = 1800.0) -> None:
        self.timeout = timeout
        #: None for the default process group of torch, which is looked up: its threads end with its last
        #: reference, and a thread that outlives the interpreter may abort the process.
        is_default = process_group is None or process_group is dist.group.WORLD
        self._own_group = None if is_default else process_group
        #: Whether ``close`` ends the process group.
        self.is_owner = False
        self.rank = 0 if process_group is None else process_group.rank()
        self.size = 1 if process_group is None else process_group.size()
        if self.rank < 0:
            raise _exceptions.OptionError("Group: this process is not a member of the process group.")
        #: A sum that was started and not waited for.
        self.unfinished: PendingSum | None = None
        if process_group is not None and self.size > 1:
            members: list[Any] = [None] * self.size
            dist.all_gather_object(members, _failures.Member.describe_self(), group=process_group)
            store = process_group.get_group_store() if hasattr(process_group, "get_group_store") else None
            self._watch = _failures.Watch(store, self.rank, members)

    def __repr__(self) -> str:
        return f"Group(rank {self.rank} of {self.size})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Group:
        return self  # a copy of a model belongs to the same processes

    @property
    def process_group(self) -> dist.ProcessGroup | None:
        """The process group of ``torch.distributed``; None: this process alone, or the group has ended."""
        return self._own_group if self._own_group is not None or self.size == 1 else dist.group.WORLD

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0: the one that prints, and writes files."""
        return self.rank == 0

    @contextlib.contextmanager
    def expect_sum(self, count: int, device: torch.device | None = None) -> Iterator[PendingSum]:
        """Yield a sum of ``count`` numbers that the body starts. If the body fails, all ranks raise.

        The same error is raised on all ranks if it is one of lapgrad; it names the rank. After any other
        error, this rank raises it, and the others a ``ProcessGroupError``.
        """
        pending = PendingSum(self, count, device or torch.device("cpu"))
        if self.unfinished is None:  # else some ranks may fail there, and not come here
            pending.announce()
        try:
            yield pending
        except Exception as error:
            shared = pending.join_with_failure(error)
            if shared is error:
                raise
            raise shared from error

    def sum_tensors(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over all ranks, in one message."""
        if self.size > 1:
            pending = PendingSum(self, sum(tensor.numel() for tensor in tensors), tensors[0].device)
            pending.start(tensors)
            pending.wait()

    def sum_numbers(self, numbers: Sequence[float]) -> list[float]:
        """Return the sums over all ranks of some numbers."""
        total = torch.tensor(numbers, dtype=_DTYPE)
        self.sum_tensors([total])
        found: list[float] = total.tolist()
        return found

    def copy_from_first(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by that of rank 0, to the last bit."""
        if self.size > 1:
            copies = [tensor.detach().to(_DTYPE) * float(self.is_first) for tensor in tensors]
            if not self.is_first:  # 0 times infinity is not 0
                copies = [torch.zeros_like(copy) for copy in copies]
            self.sum_tensors(copies)
            with torch.no_grad():
                for tensor, copy in zip(tensors, copies, strict=True):
                    tensor.copy_(copy)

    def share_object(self, value: _Object) -> _Object:
        """Return the object of rank 0 on all ranks. It must be one that can be pickled."""
        if self.size == 1:
            return value
        sent = [value]
        try:
            dist.broadcast_object_list(sent, group=self.process_group, group_src=0)
        except RuntimeError as error:
            raise self._watch.explain(str(error)) from error
        return sent[0]

    def wait_for_all(self) -> None:
        """Wait until all ranks have called this."""
        self.sum_numbers([0.0])

    def close(self) -> None:
        """Wait for all ranks, and end the process group if ``init_group`` has started it."""
        self.wait_for_all()
        if self.is_owner:
            self.is_owner = False
            dist.destroy_process_group()

    def find_offset(self, count: int) -> tuple[int, int]:
        """Return how many rows the ranks before this one hold, and how many all of them hold."""
        counts = [0.0] * self.size
        counts[self.rank] = float(count)
        counts = self.sum_numbers(counts)
        return int(sum(counts[: self.rank])), int(sum(counts))

    def gather_rows(self, rows: Tensor, begin: int, total: int) -> Tensor:
        """Return the rows of all ranks, (total, d), in the order of the ranks.

        Args:
            rows: (n, d), of this rank.
            begin: How many rows the ranks before this one have.
            total: How many all of them have.
        """
        if self.size == 1:
            return rows
        found = rows.new_zeros(total, *rows.shape[1:], dtype=_DTYPE)
        found[begin : begin + len(rows)] = rows.to(_DTYPE)
        self.sum_tensors([found])
        return found.to(rows.dtype)

    def fail(self, error: BaseException, count: int, device: torch.device | None = None) -> BaseException:
        """Tell the other ranks, which wait for a sum of ``count`` numbers, of an error that ends the work.

        Returns:
            The error to raise: this one, or that of another rank.
        """
        return PendingSum(self, count, device or torch.device("cpu")).join_with_failure(error)

    def reduce(self, buffer: Tensor, op: Any = None) -> dist.Work | None:
        """Start the sum (or another operation) of a tensor over all ranks, in place."""
        try:
            return dist.all_reduce(buffer, op or dist.ReduceOp.SUM, group=self.process_group, async_op=True)
        except RuntimeError as error:
            raise self._watch.explain(str(error)) from error

    def wait(self, work: dist.Work | None, device: torch.device) -> None:
        """Wait for a collective of tensors on a device; raise if a rank has ended."""
        if work is not None:
            _failures.wait_for(work, self._watch, self.timeout, device)

    def exchange_error(self, status: Sequence[float], error: BaseException | None) -> BaseException:
        """Send the error of the rank that has the worst status to all ranks; return what this one raises."""
        source = max(range(self.size), key=lambda rank: (status[rank], -rank))
        sent: list[Any] = [None if error is None else _failures.Report.from_error(self.rank, error)]
        try:
            dist.broadcast_object_list(sent, group=self.process_group, group_src=source)
        except RuntimeError as broken:
            raise self._watch.explain(str(broken)) from broken
        report: _failures.Report = sent[0]
        if source == self.rank and error is not None and status[source] == _FATAL:
            _failures.mark_as_shared(error)
            return error
        return report.make_error(of_all=min(status) > _WELL)


class PendingSum:
    """A sum over the ranks of a group, in place, that carries the status of each rank.

    Args:
        group: The group.
        count: How many numbers are summed; the same on all ranks.
        device: Where the numbers are.
    """

    def __init__(self, group: Group, count: int, device: torch.device) -> None:
        self._group, self._count, self._device = group, count, device
        self._tensors: Sequence[Tensor] = ()
        self._buffer: Tensor | None = None
        self._work: dist.Work | None = None
        self._counts: Tensor | None = None
        self._counts_work: dist.Work | None = None

    def announce(self) -> None:
        """Tell the other ranks the count, which ``start`` compares. gloo ends a process that gets too much.

        (To compare counts on a GPU, the host would wait for all kernels before the sum.)
        """
        if self._group.size > 1 and self._device.type == "cpu" and self._counts is None:
            self._counts = torch.tensor([self._count, -self._count], dtype=_DTYPE)
            self._counts_work = self._group.reduce(self._counts, dist.ReduceOp.MAX)

    def start(self, tensors: Sequence[Tensor]) -> None:
        """Start summing; the tensors are replaced by their sums in ``wait``."""
        if self._group.size > 1:
            self._tensors = tensors
            flat = [tensor.detach().flatten().to(self._device, _DTYPE) for tensor in tensors]
            self._send(torch.cat(flat), _WELL)

    def wait(self) -> None:
        """Wait for the sums, and write them into the tensors.

        Raises:
            ProcessGroupError: A rank has ended, or has failed by an error that is not lapgrad's.
            LapgradError: A rank has failed by this error, which all ranks raise.
        """
        if self._buffer is None:
            return
        numbers, status = self._receive()
        if max(status) > _WELL:
            raise self._group.exchange_error(status, None)
        with torch.no_grad():
            parts = numbers.split([tensor.numel() for tensor in self._tensors])
            for tensor, part in zip(self._tensors, parts, strict=True):
                tensor.copy_(part.view(tensor.shape))
        self._tensors = ()

    def join_with_failure(self, error: BaseException) -> BaseException:
        """Join the sum in place of the work that failed, and tell the others; return the error to raise."""
        if self._group.size == 1 or _failures.is_shared(error):
            return error
        try:
            unfinished = self._group.unfinished
            if unfinished is not None and unfinished is not self:
                unfinished.wait()  # a rank that has failed there does not go on to this sum
            if self._buffer is None:
                code = _NUMERICAL if _failures.is_numerical(error) else _FATAL
                self._send(torch.zeros(self._count, dtype=_DTYPE, device=self._device), code)
                return self._group.exchange_error(self._receive()[1], error)
        except _exceptions.LapgradError as other:
            return other
        return error

    def _send(self, numbers: Tensor, code: float) -> None:
        assert len(numbers) == self._count, "the announced count"
        self.announce()
        self._compare_counts()
        status = torch.zeros(self._group.size, dtype=_DTYPE, device=self._device)
        status[self._group.rank] = code
        self._buffer = torch.cat([status, numbers])
        self._group.unfinished = self
        self._work = self._group.reduce(self._buffer)

    def _compare_counts(self) -> None:
        if self._counts is None:
            return
        work, self._counts_work = self._counts_work, None
        self._group.wait(work, self._device)
        largest, smallest = int(self._counts[0]), -int(self._counts[1])
        if largest != smallest:
            error = _exceptions.ProcessGroupError(
                f"rank {self._group.rank}: the ranks do not do the same: this one has {self._count} numbers "
                f"to add up, others have {smallest} to {largest}. All ranks must make the same model, with "
                f"the same options, and call the same methods in the same order.",
                (),
            )
            _failures.mark_as_shared(error)
            raise error

    def _receive(self) -> tuple[Tensor, list[float]]:
        """Return the sums, and the status of each rank."""
        assert self._buffer is not None
        buffer, self._buffer, self._group.unfinished = self._buffer, None, None
        work, self._work = self._work, None  # it would keep threads of the process group alive
        self._group.wait(work, self._device)
        status: list[float] = buffer[: self._group.size].tolist()
        return buffer[self._group.size :], status


def as_group(who: str, value: Group | dist.ProcessGroup | None) -> Group | None:
    """Return the argument ``group=`` of a model as a ``Group``; None stays None."""
    if value is None or isinstance(value, Group):
        return value
    # Some builds of torch come without processes.
    if dist.is_available() and isinstance(value, dist.ProcessGroup):
        return Group(value)
    raise _exceptions.OptionError(
        f"{who}: group must be a Group, a process group of torch.distributed or None, got "
        f"{type(value).__name__}."
    )


#: Names of rank and number of processes in the environment: of torchrun, Slurm, MPICH and Open MPI.
_LAUNCHERS = (
    ("RANK", "WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("PMI_RANK", "PMI_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
)


def init_group(*, backend: str | None = None, timeout: float = 1800.0) -> Group:
    """Return the group of all processes that a launcher has started; of this one alone if there is none.

    With ``torchrun --nproc-per-node 4 script.py``, or where ``MASTER_ADDR`` and ``MASTER_PORT`` name the
    machine of rank 0 and a launcher (Slurm's ``srun``, ``mpiexec``) gives each process its rank, the
    processes find each other. ``python script.py`` gives a group of one: the same program runs in one
    process.

    Args:
        backend: Of ``torch.distributed``; None: "gloo", and on machines with GPUs "nccl" for their tensors.
        timeout: Seconds after which a rank that does not join counts as failed. It is as long as ranks may
            wait for the slowest one. A rank that ends is noticed within seconds.

    Raises:
        ProcessGroupError: The processes do not find each other.

    Example:
        >>> from lapgrad.distributed import init_group
        >>> group = init_group()
        >>> group.size
        1
    """
    if dist.is_available() and dist.is_initialized():
        return Group(dist.group.WORLD, timeout=timeout)
    found = _find_launcher()
    if found is None:
        return Group()
    rank, size = found
    has_gpu = torch.cuda.is_available()
    if has_gpu:
        torch.cuda.set_device(_find_local_rank(rank) % torch.cuda.device_count())
    # Functions of FSDP have the default process group of the time of their import as a default argument, and
    # torch's optimisers import them. Imported now, they have None; later, they would keep its threads alive.
    from torch.distributed import fsdp  # noqa: F401
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    limit = datetime.timedelta(seconds=timeout)
    try:
        store, _, _ = next(rendezvous("env://", rank, size, timeout=limit))
        # torchrun keeps the store when it starts the processes again. Without a prefix they would find the
        # addresses of those that have ended.
        store = PrefixStore(f"lapgrad/{_failures.get_attempt()}", store)
        kind = backend or ("cpu:gloo,cuda:nccl" if has_gpu else "gloo")
        dist.init_process_group(kind, store=store, rank=rank, world_size=size, timeout=limit)
    except (RuntimeError, ValueError) as error:
        raise _exceptions.ProcessGroupError(f"init_group: rank {rank} of {size}: {error}") from error
    group = Group(dist.group.WORLD, timeout=timeout)
    group.is_owner = True
    atexit.register(_end_process_group)
    return group


def _end_process_group() -> None:
    """End the process group of a program that comes to its end without ``close``.

    Its threads end with it; threads that outlive the interpreter may abort the process. After an error
    nothing is done: the others may be gone, and are not waited for.
    """
    if not hasattr(sys, "last_value") and dist.is_initialized():
        dist.destroy_process_group()


def _find_launcher() -> tuple[int, int] | None:
    """Return rank and number of processes, if a launcher has started this process."""
    if "MASTER_ADDR" not in os.environ:
        return None
    for rank, size in _LAUNCHERS:
        if rank in os.environ and size in os.environ:
            return int(os.environ[rank]), int(os.environ[size])
    return None


def _find_local_rank(rank: int) -> int:
    """Return the number of this process on its machine."""
    for name in ("LOCAL_RANK", "SLURM_LOCALID", "MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK"):
        if name in os.environ:
            return int(os.environ[name])
    return rank
