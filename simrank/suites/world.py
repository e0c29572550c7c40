"""The simulation of the ranks' sessions; the hub gives all ranks their next order."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import count
from typing import TYPE_CHECKING, Any

from simrank.context import Context
from simrank.engine import Handle, NamedWait
from simrank.errors import SimrankError
from simrank.isolation.extension import OWN_MODULES
from simrank.multiprocessing.script import program_imports
from simrank.multiprocessing.spawn import spawn_in
from simrank.ranks.current import for_real
from simrank.suites.session import RankSession, abandon

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Order = Callable[[RankSession], None]

_AT_REST = "has ended the test"


class World:
    """The ranks of a suite, each with a session.

    Args:
        num_ranks: How many.
        args: pytest's command line.
        folder: Where tests make temporary files, a folder per rank; None: pytest's own.
        settings: Of the Context.

    Attributes:
        num_ranks: As given.
        sessions: The ranks' sessions, in rank order.
        failed: Ranks whose test has failed.
        is_over: Whether ranks have ended; another world is needed.
    """

    def __init__(
        self, num_ranks: int, args: Sequence[str], folder: str | None, settings: Mapping[str, Any]
    ) -> None:
        if find_spec("torch") is not None:  # Now: ranks read it as they start.
            import_module("torch")
        self.num_ranks = num_ranks
        self.failed: set[int] = set()
        self.is_over = False
        self._through = 0
        self._settled = Handle()
        self._done = Handle()
        self._gates = [NamedWait(_AT_REST)]  # One for each order; the last is closed.
        self._order: Order | None = None
        self._left: set[int] = set()
        self.sessions = [
            RankSession(
                [*args, *([f"--basetemp={folder}{rank}"] if folder is not None else ())],
                partial(self._phase_over, rank),
            )
            for rank in range(num_ranks)
        ]
        self._stdin = sys.stdin
        self._context = Context.for_ranks(num_ranks, **{"carrier": "thread", **settings})
        self._context.program.local[OWN_MODULES] = True
        self._imports = program_imports()
        self._imports.__enter__()
        self._context.__enter__()
        processes = spawn_in(
            self._context.program, self._live, (), num_ranks, join=False, is_users=False
        )
        assert processes is not None, "not joined"
        self._processes = processes
        self._between = ExitStack()  # While the driving session goes on, nothing is simulated.
        self._between.enter_context(for_real())

    @property
    def now_ps(self) -> int:
        """Simulated time in picoseconds."""
        return self._context.now_ps

    def is_clean(self) -> bool:
        """Return whether a test has left nothing behind that the next one could meet.

        That is: default groups are those of modules and of fixtures beyond the test, nothing is in
        flight, no thread is left, and the members of each group have made equally many calls.
        """
        engine = self._context.engine
        if self.is_over or engine.pending or len(engine.tasks) > self.num_ranks:
            return False
        if any(session.default_group is not session.lasting for session in self.sessions):
            return False
        library = self._context.comm_library
        groups = [group for world in library.worlds.values() for group in world.groups()]
        return not library.leaks.unreceived() and all(group.is_even() for group in groups)

    def tell(self, order: Order) -> None:
        """Send an order to the ranks, and wait until all have carried it out.

        Args:
            order: Called with the session of each.

        Raises:
            DeadlockError, LivelockError: They wait forever; the world is over.
            BaseException: What a rank raised that pytest does not report.
        """
        engine, group = self._context.engine, self._processes.group
        self._left, self.failed, self._through = set(range(self.num_ranks)), set(), 0
        self._settled, self._done, self._order = NamedWait("has failed"), Handle(), order
        if len(self._gates) == 1:
            group.on_complete(self._all_gone)
        self._gates.append(NamedWait(_AT_REST))
        self._gates[-2].finish(engine)
        self._between.close()
        try:
            engine.run(until=self._done)
        except BaseException as error:
            self.end(error)
            raise
        finally:
            if not self.is_over:
                self._between.enter_context(for_real())
        if group.failed:
            failure = group.failed[0].error
            self.end(failure)
            assert failure is not None, "it has failed"
            raise failure

    def end(self, error: BaseException | None = None) -> None:
        """End the ranks, and leave the simulation."""
        if self.is_over:
            return
        self.is_over = True
        self._between.close()
        for session in self.sessions:
            session.note_end()
        try:
            self._processes.group.abort()
            if self._processes in self._context.unjoined:
                self._context.unjoined.remove(self._processes)
        finally:
            try:
                cause = SimrankError("the world is over") if error is None else error
                self._context.__exit__(type(cause), cause, cause.__traceback__)
            finally:
                self._imports.__exit__(None, None, None)
                sys.stdin = self._stdin
                for session in self.sessions:
                    abandon(session)

    def _all_gone(self) -> None:
        if not self._done.complete:
            self._done.finish(self._context.engine)

    # ---- on a rank ----

    def _live(self, rank: int) -> None:
        """Carry out orders until the world ends."""
        engine = self._context.engine
        os.environ.pop("PYTEST_CURRENT_TEST", None)  # Of the session that drives this.
        for number in count():
            engine.wait(self._gates[number])
            assert self._order is not None, "the gate is open"
            self._order(self.sessions[rank])
            self._left.discard(rank)
            if not self._left:
                self._done.finish(engine)

    def _phase_over(self, rank: int, failed: bool) -> None:
        """Record the end of a rank's body; a failed rank waits for the other ranks."""
        self._through += 1
        if failed:
            self.failed.add(rank)
        if self._through == self.num_ranks and not self._settled.complete:
            self._settled.finish(self._context.engine)
        if failed:
            self._context.engine.wait(self._settled)
