"""Which operators are accelerated: in the process, and in the scope of the caller."""

from __future__ import annotations

import contextvars
import dataclasses
import threading


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """What one call of ``accelerate`` asks for. Two calls are two choices, even of the same operators.

    Attributes:
        names: The operators, by the names of ``routes``.
        always: Take every call that lapgrad can serve, also where torch is faster.
    """

    names: frozenset[str]
    always: bool = False

    def describe(self) -> str:
        """Return the operators in words: "cholesky, eigh", or "off"."""
        return ", ".join(sorted(self.names)) or "off"


#: Nothing is accelerated.
NOTHING = Choice(frozenset())

#: The choice of the innermost scope of this thread and async task; None: there is no scope.
SCOPE: contextvars.ContextVar[Choice | None] = contextvars.ContextVar("lapgrad.accelerate", default=None)


class ProcessChoice:
    """The choice for calls outside of all scopes: the last one that was made and not withdrawn.

    Attributes:
        current: The choice in force.
    """

    __slots__ = ("_lock", "_made", "current")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: list[Choice] = []
        self.current = NOTHING

    def make(self, choice: Choice) -> None:
        """Make ``choice`` the choice of the process."""
        with self._lock:
            self._made.append(choice)
            self.current = choice

    def forget_all(self) -> None:
        """Remove all choices."""
        with self._lock:
            self._made.clear()
            self.current = NOTHING

    def withdraw(self, choice: Choice) -> None:
        """Remove ``choice``, and keep all others, also those that other threads have made since."""
        with self._lock:
            self._made = [other for other in self._made if other is not choice]
            self.current = self._made[-1] if self._made else NOTHING


#: A process has one dispatcher, whose overrides all threads share, and so one choice.
PROCESS = ProcessChoice()
