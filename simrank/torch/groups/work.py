"""Calls of simulated process groups as `torch.distributed.Work`."""

from __future__ import annotations

from _thread import get_ident
from collections import defaultdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch.futures import Future

from simrank.engine import limits
from simrank.engine.callsite import is_called_by_package
from simrank.engine.limits import watch
from simrank.errors import PeerDiedError, WaitTimeoutError
from simrank.ranks.current import current_engine, rank_program
from simrank.torch.devices import activation
from simrank.torch.profiler import is_recording, record_comms
from simrank.units import PS_PER_US

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from simrank.device import Operation
    from simrank.distributed.work import Work

_NO_LIMIT = timedelta(0)
live_works: defaultdict[int, WeakSet[SimulatedWork]] = defaultdict(WeakSet)  # By native thread.


class SimulatedWork(dist.Work):
    """One or more calls of simrank as one `torch.distributed.Work`.

    Args:
        works: simrank's own; none: what was called has ended already.
        outputs: What the call fills: tensors, or lists of them.
        limit: The group's time limit, if the program has chosen one: of gloo's waits on the host,
            and of nccl's watchdog, which lets the host go on.
        after: Called once it has ended.
        reads: What the call reads, which stays alive until it has been waited for, as with nccl.
        is_stacked: Whether the result is one tensor of all outputs: nccl gathers into one, and
            copies it to the list.
    """

    def __init__(
        self,
        works: Sequence[Work],
        outputs: Sequence[Any],
        limit: timedelta | None = None,
        after: Callable[[], None] | None = None,
        *,
        reads: Sequence[torch.Tensor] | None = None,
        is_stacked: bool = False,
    ) -> None:
        super().__init__()
        self._reads = reads
        self._works = works
        self._outputs = outputs
        self._limit = limit
        self._after = after
        self._is_stacked = is_stacked
        self._future: Future[Any] | None = None
        live_works[get_ident()].add(self)
        for work in works:
            if limit is not None and work.stream is not None:
                self._limit = None
                _watch(work._operation, limit)  # noqa: SLF001 - for the message

    @property
    def made_as(self) -> str | None:
        """The call that its rank waits for, for a search; None: it goes on meanwhile."""
        operations = [work._operation for work in self._works]  # noqa: SLF001 - as below
        waits = [each.task is not None and each.task.waiting is each for each in operations]
        return "awaited" if waits and all(waits) else None

    def wait(self, timeout: timedelta = _NO_LIMIT) -> bool:
        """Wait as the backend does: gloo on the host, nccl on the current stream.

        Raises:
            RuntimeError: The time limit passed; gloo's words.
        """
        if not self._works and self._after is None:
            return True
        if self._works:
            own = activation.devices_in_use()
            if own is not None:
                own.flush()
                own.make_current()
            self._show_wait()
        limit = timeout if timeout > _NO_LIMIT else self._limit
        for work in self._works:
            if limit is None:
                work.wait()
            else:
                _wait_within(work, limit)
        self._finish()
        return True

    def _show_wait(self) -> None:
        """Record the wait for a call on a stream in the rank's profilers."""
        program = rank_program()
        is_shown = program is not None and is_recording(program)
        if is_shown and self._works[0].stream is not None:
            assert program is not None, "it has a profiler"
            record_comms(program, {"Collective name": "wait", "dtype": "Byte"})

    def synchronize(self) -> None:
        """Wait, as `wait()` does."""
        self.wait()

    def block_current_stream(self) -> None:
        """Wait, as `wait()` does."""
        self.wait()

    def is_completed(self) -> bool:
        """Return whether all calls are complete; a negative answer is charged as a poll."""
        done = all(work.is_completed() for work in self._works)
        if done:
            self._finish()
        return done

    def is_success(self) -> bool:
        """Return whether all calls completed without an error."""
        return all(work.is_success() for work in self._works)

    def exception(self) -> BaseException | None:
        """Return the exception, or None."""
        return next((e for e in (work.exception() for work in self._works) if e is not None), None)

    def result(self) -> list[torch.Tensor]:
        """Return the output tensors; of an all_gather of nccl, one of shape [world, ...].

        Raises:
            RuntimeError: They are lists of tensors; torch's words.
        """
        if self._outputs and not isinstance(self._outputs[0], torch.Tensor):
            raise RuntimeError(
                "work result does not support list of lists, use .getFuture() and value()"
            )
        return self._value()

    def _value(self) -> list[Any]:
        return [torch.stack([*self._outputs])] if self._is_stacked else list(self._outputs)

    def source_rank(self) -> int:
        """Return the group rank of the sender of a received message."""
        if not self._works:
            raise RuntimeError("sourceRank() may only be called on work of a completed recv")
        return self._works[0].source_rank()

    _source_rank = source_rank

    def get_future(self) -> Future[Any]:
        """Return a completed future: a native wait would block all ranks.

        nccl's future makes the stream of its waiter wait; for gloo's the host has waited.
        """
        if self._future is None:
            self._future = self._future_of_stream()
        if self._future is None:
            if not is_called_by_package():
                limits.pass_over(current_engine(), "the future of a call of gloo, which waits")
            self.wait()
            self._future = Future()
            self._future.set_result(self._value())
        return self._future

    def _future_of_stream(self) -> Future[Any] | None:
        """Return a future of calls on a stream; None for calls of which the host waits."""
        own, streams = activation.devices_in_use(), {work.stream for work in self._works}
        stream = streams.pop() if len(streams) == 1 else None
        if own is None or stream is None or self._after is not None:
            return None
        for work in self._works:
            work._note_wait()  # noqa: SLF001 - the future is waited for
        with own.on_stream(stream) as device:
            future: Future[Any] = Future(devices=[device])
            future.set_result(self._value())
        return future

    def abandon(self) -> Iterator[torch.Tensor]:
        """Wait for nothing from now on; yield the outputs."""
        self._works, self._after = (), None
        return flattened(self._outputs)

    def _finish(self) -> None:
        self._reads = None
        after, self._after = self._after, None
        if after is not None:
            after()


def flattened(outputs: Sequence[Any]) -> Iterator[torch.Tensor]:
    """Yield the tensors of nested lists."""
    for output in outputs:
        if isinstance(output, torch.Tensor):
            yield output
        else:
            yield from output


def _wait_within(work: Work, limit: timedelta) -> None:
    try:
        work.wait(limit)
    except (WaitTimeoutError, PeerDiedError) as error:
        if isinstance(error, PeerDiedError) and not _is_of_watchdog(work, error):
            raise
        raised = RuntimeError(_limit_text(work._operation, limit))  # noqa: SLF001 - for the message
        raised.add_note(str(error))
        raise raised from error


def _watch(operation: Operation, limit: timedelta) -> None:
    limit_ps = round(limit.total_seconds() * 1e6) * PS_PER_US
    engine = operation.stream.device.engine
    watch(engine, operation, limit_ps, lambda: RuntimeError(_limit_text(operation, limit)))


def _is_of_watchdog(work: Work, error: PeerDiedError) -> bool:
    """Return whether nccl's watchdog ends a call: another member's limit has passed.

    Of gloo's members the others see that the connection was closed.
    """
    is_nccl = bool(getattr(work._operation, "num_sms", 0))  # noqa: SLF001 - what it is
    return is_nccl and isinstance(error.peer_error, WaitTimeoutError)


def _limit_text(operation: Any, limit: timedelta) -> str:
    """Return the text of gloo, or of nccl's watchdog, for a call over its time limit."""
    milliseconds = round(limit.total_seconds() * 1000)
    request = getattr(operation, "request", None)
    if request is None or not operation.num_sms:
        return f"[simrank] Timed out waiting {milliseconds}ms for {operation.name} to complete"
    return (
        f"[Rank {operation.group_rank}] Watchdog caught collective operation timeout: WorkNCCL("
        f"SeqNum={operation.call.seq}, OpType={request.signature.op.replace('_', '').upper()}, "
        f"NumelIn={request.source.numel()}, NumelOut={request.target.numel()}, "
        f"Timeout(ms)={milliseconds}) ran for {milliseconds} milliseconds before timing out."
    )


DONE = SimulatedWork((), [])
