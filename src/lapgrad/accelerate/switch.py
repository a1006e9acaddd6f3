"""The switch: ``lapgrad.accelerate``."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Collection
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any, TypeVar

from lapgrad import _errors
from lapgrad.accelerate.choices import NOTHING, PROCESS, SCOPE, Choice
from lapgrad.accelerate.overrides import Overrides
from lapgrad.accelerate.routes import NAMES
from lapgrad.accelerate.statistics import Statistics, summarise

Function = TypeVar("Function", bound=Callable[..., Any])


class Scope:
    """What ``accelerate(...)`` and ``accelerate.off()`` return: in force at once, in the whole process.

    As a block (``with``) or as a decorator it is withdrawn from the process and holds inside of the block, or
    during calls of the function, instead: in the thread and the async task that run them. Inside, the
    innermost scope decides. It can be used any number of times.
    """

    def __init__(self, choice: Choice, overrides: Overrides) -> None:
        self._choice = choice
        self._overrides = overrides
        # Per thread and task, as the scope itself is: one object may be entered in several of them at a time.
        self._entered: ContextVar[tuple[Token[Choice | None], ...]] = ContextVar("entered", default=())

    def __repr__(self) -> str:
        return f"<lapgrad.accelerate: {self._choice.describe()}>"

    def __enter__(self) -> Scope:
        self.withdraw()
        self._overrides.open_scope(self._choice)
        self._entered.set((*self._entered.get(), SCOPE.set(self._choice)))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        *outer, entered = self._entered.get()
        self._entered.set(tuple(outer))
        SCOPE.reset(entered)
        self._overrides.close_scope()

    def __call__(self, function: Function) -> Function:
        """Return ``function``, during whose calls this scope holds; also an async function or a generator."""
        self.withdraw()
        decorated: Any
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def decorated(*arguments: Any, **options: Any) -> Any:
                with self:
                    return await function(*arguments, **options)

        elif inspect.isgeneratorfunction(function):

            @functools.wraps(function)
            def decorated(*arguments: Any, **options: Any) -> Any:
                return (yield from _run_in_steps(function(*arguments, **options), self))

        else:

            @functools.wraps(function)
            def decorated(*arguments: Any, **options: Any) -> Any:
                with self:
                    return function(*arguments, **options)

        return decorated

    def withdraw(self) -> None:
        """Let the choice hold no longer for the process."""
        PROCESS.withdraw(self._choice)


class OffScope(Scope):
    """The result of ``accelerate.off()``, which is used as a statement or as a block (``with``).

    When it is created, it cannot know which of the two it will be. If it is dropped without having been
    entered, it was a statement, and the overrides are removed. A block leaves them installed, because
    changing the dispatcher's tables is slow.
    """

    def __init__(self, choice: Choice, overrides: Overrides) -> None:
        super().__init__(choice, overrides)
        self._is_statement = True

    def withdraw(self) -> None:
        """Let the choice hold no longer for the process; the overrides stay."""
        self._is_statement = False
        super().withdraw()

    def __del__(self) -> None:
        if self._is_statement and PROCESS.current is self._choice:
            PROCESS.forget_all()
            self._overrides.remove()


def _run_in_steps(generator: Any, scope: Scope) -> Any:
    """Run a generator so that ``scope`` holds while it works, and not while its caller does."""
    send: Callable[..., Any] = generator.send
    argument: Any = None
    while True:
        try:
            with scope:
                value = send(argument)
        except StopIteration as stop:
            return stop.value
        try:
            send, argument = generator.send, (yield value)
        except GeneratorExit:
            with scope:
                generator.close()
            raise
        except BaseException as error:
            send, argument = generator.throw, error


class Acceleration:
    """``lapgrad.accelerate``: programs that call ``torch.linalg`` run on lapgrad, without another change.

    ``lapgrad.accelerate()`` holds from that line on, ``with lapgrad.accelerate():`` in a block,
    ``@lapgrad.accelerate()`` in a function. ``lapgrad.accelerate.off()`` ends it, and
    ``lapgrad.accelerate.stats()`` says which calls lapgrad took. This is the type of that one object;
    ``__call__`` has the details.
    """

    def __init__(self) -> None:
        self._overrides = Overrides()

    def __call__(self, *, only: Collection[str] | None = None, always: bool = False) -> Scope:
        """Let torch.linalg, in code that knows nothing of lapgrad, run on lapgrad's kernels and gradients.

        From this call on, in all threads of the process. As a block, ``with lapgrad.accelerate():``, or as a
        decorator, ``@lapgrad.accelerate()``, only inside of the block or of the function, and there only in
        the thread and the async task that run it. In nested blocks the innermost one decides.

        Covered are, on CPU and CUDA in float32 and float64, the operators below and what is made of them
        (``torch.linalg.pinv``, ``matrix_power``, Tensor methods, ``torch.distributions``, ...), with
        gradients of all orders, forward mode, torch.func, ``out=`` and inference mode. Results have torch's
        shapes, strides, types and errors. A call is taken where it was measured to be faster; see
        ``stats()`` and ``lapgrad info --verbose``.

        What differs from torch: eigenvectors and singular vectors have definite signs, and gradients at
        equal eigenvalues or singular values are finite (the policy "mask" of ``lapgrad.syevd``); the
        gradient of ``eigh`` is symmetric; on CUDA the factor of a matrix that is not positive definite is
        the identity. torch's factorisations of batches on several CPU threads, which may hang or return
        wrong numbers (``inv``, ``solve``, ``det``, ``slogdet``, ``lu_factor``), are replaced.

        Graphs of ``torch.compile`` and ``torch.export`` keep the operators they were traced with.

        Args:
            only: The operators to accelerate: names among "cholesky", "cholesky_inverse", "cholesky_solve",
                "det", "eigh", "inv", "isclose", "lu_factor", "qr", "slogdet", "solve", "solve_triangular",
                "svd". None: all of them.
            always: Take every call that lapgrad can serve, also where torch was measured to be faster: for
                tests and comparisons.

        Returns:
            The scope, to be used as a block or a decorator, or to be dropped.

        Raises:
            OptionError: ``only`` has a name that is not among these.

        Example:
            >>> import torch, lapgrad
            >>> A = torch.eye(200).expand(4, 200, 200)
            >>> _ = lapgrad.accelerate.stats(reset=True)
            >>> with lapgrad.accelerate(only={"cholesky"}):
            ...     L = torch.linalg.cholesky(A)
            >>> lapgrad.accelerate.stats().taken
            1
        """
        names = NAMES if only is None else frozenset((only,) if isinstance(only, str) else only)
        for name in sorted(names - NAMES):
            raise _errors.unknown_option("accelerate", "only", name, tuple(sorted(NAMES)))
        choice = Choice(names, always)
        self._overrides.install(choice)
        PROCESS.make(choice)
        return Scope(choice, self._overrides)

    def off(self) -> Scope:
        """Give torch.linalg its own kernels back, in the whole process; as a block, inside of it.

        Blocks of ``accelerate()`` that are open keep what they have chosen.
        """
        choice = Choice(NOTHING.names)
        PROCESS.make(choice)
        return OffScope(choice, self._overrides)

    def stats(self, *, reset: bool = False) -> Statistics:
        """Return how many calls were taken and passed on, by operator, shape and reason; prints as a table.

        Args:
            reset: Count from zero again.
        """
        found = summarise(self._overrides.counts)
        if reset:
            self._overrides.counts.clear()
        return found


accelerate = Acceleration()


def start_from_environment() -> None:
    """Do as ``LAPGRAD_ACCELERATE`` says.

    1 for all operators, their names with commas for some of them, "always" for ``always=True``.

    Raises:
        OptionError: The variable has a name that is not that of an operator.
    """
    wanted = os.environ.get("LAPGRAD_ACCELERATE", "").lower()
    if wanted in ("", "0", "off", "false"):
        return
    is_general = wanted in ("1", "on", "true", "always")
    accelerate(only=None if is_general else wanted.split(","), always=wanted == "always")
