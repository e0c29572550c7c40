"""The handle of an asynchronous collective, as torch.distributed.Work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from simrank.device.stream import stream_on
from simrank.engine import limits
from simrank.errors import WaitTimeoutError
from simrank.units import PS_PER_US

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import timedelta

    from simrank.device import Buffer, Operation, Stream
    from simrank.distributed.future import Future
    from simrank.engine import Handle


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
        """Return the stream behind which others wait for it; None: who waits blocks the host."""
        return None if self._blocks_host else self._operation.stream

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block its device's *current stream* until it is complete; the host goes on, as with NCCL.

        With a timeout, for a barrier, and with gloo, the host blocks.

        Raises:
            WaitTimeoutError: The timeout passed.
        """
        self._note_wait()
        operation = self._operation
        engine = operation.stream.device.engine
        if timeout is not None:
            wait_or_withdraw(operation, timeout)
        elif self._blocks_host:
            engine.wait(operation)
            operation.host_ordered()
        else:
            stream_on(operation.stream.device).wait_for(operation)
        return True

    def synchronize(self) -> None:
        """Do what `wait()` does."""
        self.wait()

    def is_completed(self) -> bool:
        """Return whether it is complete; a negative answer is a charged poll (E8)."""
        operation = self._operation
        if not operation.complete:
            limits.poll(operation.stream.device.engine, f"is_completed of {operation.name}")
        if operation.complete:
            operation.host_ordered()
            self._note_wait()
        return operation.complete

    def is_success(self) -> bool:
        """Return whether it completed without an error."""
        return self._operation.complete and self._operation.error is None

    def exception(self) -> BaseException | None:
        """Return what went wrong, or None."""
        return self._operation.error

    def result(self) -> list[Buffer]:
        """Return the output tensors."""
        return list(self._result)

    def source_rank(self) -> int:
        """Return the group rank that a receive got its message from.

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
        from simrank.distributed.future import Future  # noqa: PLC0415 - few programs use it

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
