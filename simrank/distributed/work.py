"""The handle of an asynchronous collective, as torch.distributed.Work."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from simrank.device import use_stream
from simrank.device.clocks import is_behind
from simrank.device.stream import new_stream, stream_on
from simrank.engine import Handle, limits
from simrank.errors import WaitTimeoutError
from simrank.ranks import require_program, set_program
from simrank.units import PS_PER_US

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import timedelta

    from simrank.device import Buffer, Operation, Stream
    from simrank.ranks import Program


def wait_or_withdraw(operation: Operation, timeout: timedelta) -> None:
    """Block the host until an operation has ended, but not for longer than `timeout`.

    Raises:
        WaitTimeoutError: The time limit passed. The call is withdrawn: it fails, with what was
            issued to its stream after it, and the group is of no use any more: other members that
            wait for this one get PeerDiedError, as do later calls.
    """
    engine = operation.stream.device.engine
    try:
        engine.wait(operation, timeout_ps=round(timeout.total_seconds() * 1e6) * PS_PER_US)
    except WaitTimeoutError as error:
        operation.stream.fail(operation, error)
        raise
    finally:
        operation.host_ordered()


class Work:
    """A collective or message that was started and may still run."""

    def __init__(
        self,
        operation: Operation,
        result: Sequence[Buffer],
        *,
        blocks_host: bool,
        on_wait: Callable[[], None] | None = None,
    ) -> None:
        self._operation = operation
        self._is_incomplete = operation.completes_by_wait
        self._result = result
        self._blocks_host = blocks_host
        self._on_wait = on_wait

    @property
    def handle(self) -> Handle:
        """Return its completion, for `ctx.wait`."""
        self._note_wait()
        return self._operation

    @property
    def stream(self) -> Stream | None:
        """Return the stream that waiting streams follow; None if a wait blocks the host."""
        return None if self._blocks_host else self._operation.stream

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block its device's *current stream* until it is complete; the host goes on, as with NCCL.

        With a timeout, for a barrier, and with gloo, the host blocks.

        Raises:
            WaitTimeoutError: The timeout passed.
        """
        self._note_wait()
        operation = self._operation
        self._is_incomplete = False
        if timeout is not None:
            wait_or_withdraw(operation, timeout)
        elif self._blocks_host:
            operation.wait_on_host()
        else:
            stream_on(operation.stream.device).wait_for(operation)
        return True

    def synchronize(self) -> None:
        """Wait, as `wait()` does."""
        self.wait()

    def is_completed(self) -> bool:
        """Return whether it is complete; a negative answer is a charged poll (E8).

        A message of gloo is complete once it was waited for, as torch has it.
        """
        operation = self._operation
        engine, what = operation.stream.device.engine, f"is_completed of {operation.name}"
        is_true = None if self._is_incomplete else lambda: operation.complete
        done = limits.ask(
            engine,
            what,
            is_true,
            partial(is_behind, operation.stream.device.races, operation),
            operation,
        )
        if done:
            operation.host_ordered()
            self._note_wait()
        return done

    def is_success(self) -> bool:
        """Return whether all calls completed without an error."""
        return self._operation.complete and self._operation.error is None

    def exception(self) -> BaseException | None:
        """Return the exception, or None."""
        return self._operation.error

    def result(self) -> list[Buffer]:
        """Return the output tensors."""
        return list(self._result)

    def source_rank(self) -> int:
        """Return the group rank of the sender of a received message.

        Raises:
            RuntimeError: It is no receive, or has not completed.
        """
        source = getattr(self._operation, "source_rank", None)
        if source is None:
            raise RuntimeError("sourceRank() may only be called on work of a completed recv")
        return int(source)

    _source_rank = source_rank

    def get_future(self) -> Future:
        """Return a future of the output tensors, which waits as this Work does."""
        return Future.of_work(
            self._operation,
            list(self._result),
            blocks_host=self._blocks_host,
            note_wait=self._note_wait,
        )

    def _note_wait(self) -> None:
        if self._on_wait is not None:
            self._on_wait()
            self._on_wait = None


# A Work if the call's `async_op` is true, else None: as for torch's own functions, what reads types
# is not told which.
WorkIfAsync: TypeAlias = Any

# ---- The future of a Work, as torch.futures.Future ----

_log = logging.getLogger("simrank")


class Future:
    """A value that is there later.

    A nccl Work's future is done as soon as its call is issued, and `wait` makes the current
    *stream* wait for the value; callbacks run at once, on a stream that waits for it. A gloo Work's
    future is done when the call has ended, and `wait` blocks the host; callbacks run then.
    """

    def __init__(self) -> None:
        self._program = require_program("a Future")
        self._ready = Handle()
        self._value: object = None
        self._error: BaseException | None = None
        self._operation: Operation | None = None
        self._on_host: Operation | None = None  # What the host waits for.
        self._note_wait: Callable[[], None] | None = None
        self._callbacks: list[Callable[[], Any]] = []
        self._is_seen = False  # By its rank.

    @classmethod
    def of_work(
        cls,
        operation: Operation,
        value: list[Buffer],
        *,
        blocks_host: bool,
        note_wait: Callable[[], None],
    ) -> Future:
        """Return the future of a Work, with the list of its output tensors as value."""
        future = cls()
        future._note_wait = note_wait
        future._value = value
        if blocks_host:
            future._on_host = operation
            operation.on_complete(future._finish)
        else:
            future._operation = operation
            future._finish()
        return future

    def _finish(self) -> None:
        self._ready.finish(self._program.engine)

    def done(self) -> bool:
        """Return whether the value is there, for nccl in stream order; no is charged (E8)."""
        if self._on_host is None or self._program.engine.current_task() is None:
            return self._ready.complete
        self._is_seen = limits.ask(
            self._program.engine,
            "done() of a future",
            lambda: self._ready.complete,
            lambda: self._is_seen,
            self,
        )
        return self._is_seen

    def wait(self) -> Any:  # noqa: ANN401 - the value
        """Wait as `Work.wait` does, and return the value.

        Raises:
            RuntimeError: The callback that makes the value has raised; torch's words.
            Exception: What `set_exception` was given.
        """
        self._wait()
        if self._note_wait is not None:
            self._note_wait()
        if self._operation is not None:
            stream_on(self._operation.stream.device).wait_for(self._operation)
        if self._error is not None:
            raise self._error
        return self._value

    def _wait(self) -> None:
        self._program.engine.wait(self._ready)
        self._is_seen = True
        if self._on_host is not None:
            self._on_host.host_ordered()

    def value(self) -> Any:  # noqa: ANN401 - the value
        """Return the value of a future that is done.

        Raises:
            RuntimeError: It is not.
        """
        if not self.done():
            raise RuntimeError("Future.value() was called before the future is done")
        return self.wait()

    def set_result(self, result: object) -> None:
        """Give the value.

        Raises:
            RuntimeError: It has one.
        """
        if self._ready.complete:
            raise RuntimeError("Future can only be marked completed once")
        self._value = result
        self._finish()

    def set_exception(self, result: BaseException) -> None:
        """Set the exception that `wait` raises."""
        self._error = result
        self.set_result(None)

    def then(self, callback: Callable[[Future], Any]) -> Future:
        """Call `callback(self)` when this is done; the result is the future of its value."""
        chained = Future()

        def run() -> None:
            try:
                chained._value, chained._operation = self._call(callback)
            except Exception as error:  # noqa: BLE001 - raised to the waiter of the value
                text = f"{type(error).__name__}: {error}"
                chained._error = RuntimeError(
                    f"Got the following error when running the callback: {text}"
                )
                chained._error.__cause__ = error
            chained._finish()

        self._when_done(run)
        return chained

    def add_done_callback(self, callback: Callable[[Future], Any]) -> None:
        """Call `callback(self)` when this is done; what it raises is logged, as torch does."""

        def run() -> None:
            try:
                self._call(callback)
            except Exception:  # noqa: BLE001 - a program's own callback
                who = f"rank {self._program.rank}"
                _log.exception("%s: got an error when running a future's callback", who)

        self._when_done(run)

    def _call(self, callback: Callable[[Future], Any]) -> tuple[Any, Operation | None]:
        """Return the callback's result, and the handle that makes it valid in stream order."""
        operation = self._operation
        if operation is None:
            return callback(self), None
        stream = new_stream(operation.stream.device, "future callback")
        stream.wait_for(operation)
        with use_stream(stream):
            value = callback(self)
        return value, stream.tail

    def _when_done(self, run: Callable[[], Any]) -> None:
        """Run now if this is done, else in a task that waits for it and runs all, in order."""
        if self._ready.complete:
            run()
            return
        self._program.engine.shares_variables = True  # The callback runs on another thread.
        self._callbacks.append(run)
        if len(self._callbacks) == 1:
            _start(self._program, self._wait, self._callbacks)


def _start(program: Program, wait: Callable[[], None], callbacks: list[Callable[[], Any]]) -> None:
    def body() -> None:
        set_program(program)
        wait()
        for run in callbacks:
            run()

    task = program.engine.start_task(body, f"a future's callback of {program.rank}", program.rank)
    if program.task is not None and program.task.group is not None:
        program.task.group.add_guest(task)  # It fails with the ranks, and they end after it.
