"""The future of a Work, as torch.futures.Future."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from simrank.device import use_stream
from simrank.device.stream import new_stream, stream_on
from simrank.engine import Handle
from simrank.ranks import require_program, set_program

if TYPE_CHECKING:
    from collections.abc import Callable

    from simrank.device import Buffer, Operation
    from simrank.ranks import Program


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
        """Return whether the value is there, for nccl in stream order."""
        return self._ready.complete

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
        if self.done():
            raise RuntimeError("Future can only be marked completed once")
        self._value = result
        self._finish()

    def set_exception(self, result: BaseException) -> None:
        """Let `wait` raise."""
        self._error = result
        self.set_result(None)

    def then(self, callback: Callable[[Future], Any]) -> Future:
        """Call `callback(self)` when this is done; the result is the future of its value."""
        chained = Future()

        def run() -> None:
            try:
                chained._value, chained._operation = self._call(callback)
            except Exception as error:  # noqa: BLE001 - raised by whoever waits for the value
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
        """Return what the callback returns, and what makes it valid in stream order."""
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
        if self.done():
            run()
            return
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
