"""The handle of an asynchronous collective, as torch.distributed.Work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simrank.device import current_stream
from simrank.engine import limits
from simrank.units import PS_PER_US

if TYPE_CHECKING:
    from datetime import timedelta

    from simrank.device import Operation, Tensor
    from simrank.engine import Handle


class Work:
    """A collective that was started and may still run."""

    def __init__(self, operation: Operation, result: list[Tensor], *, blocks_host: bool) -> None:
        self._operation = operation
        self._result = result
        self._blocks_host = blocks_host

    @property
    def handle(self) -> Handle:
        """Return its completion, for `ctx.wait`."""
        return self._operation

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block the *current stream* until it is complete; the host goes on, as with NCCL.

        With a timeout, and for a barrier, the host blocks.

        Raises:
            WaitTimeoutError: The timeout passed.
        """
        operation = self._operation
        engine = operation.stream.device.engine
        if timeout is not None:
            engine.wait(operation, timeout_ps=round(timeout.total_seconds() * 1e6) * PS_PER_US)
            operation.host_ordered()
        elif self._blocks_host:
            engine.wait(operation)
            operation.host_ordered()
        else:
            current_stream().wait_for(operation)
        return True

    def is_completed(self) -> bool:
        """Return whether it is complete; a negative answer is a charged poll (E8)."""
        operation = self._operation
        if not operation.complete:
            limits.poll(operation.stream.device.engine, f"is_completed of {operation.name}")
        if operation.complete:
            operation.host_ordered()
        return operation.complete

    def is_success(self) -> bool:
        """Return whether it completed without an error."""
        return self._operation.complete and self._operation.error is None

    def exception(self) -> BaseException | None:
        """Return what went wrong, or None."""
        return self._operation.error

    def result(self) -> list[Tensor]:
        """Return the output tensors."""
        return self._result
