"""One rank's part of a collective, as an operation on a stream of its device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simrank.device import Operation
from simrank.distributed.kernel_names import module_of
from simrank.distributed.skipped import SkippedCall
from simrank.errors import PeerDiedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simrank.device import Device
    from simrank.distributed.call import Call
    from simrank.distributed.request import Request


class CollectiveOperation(Operation):
    """One rank's part of a collective, on a stream of its device.

    Attributes:
        call: The calls of all ranks that this one belongs to.
        group_rank: Its rank in the group.
        request: What it asked for.
        inputs: What it contributes.
        outputs: What it gets.
        num_sms: SMs that it occupies from its arrival on; none where the host runs it.
        memory_bytes_per_ps: Bandwidth of memory that it takes from its last peer's arrival on.
    """

    __slots__ = (
        "call", "group_rank", "inputs", "is_launch", "memory_bytes_per_ps", "num_sms", "outputs",
        "request",
    )  # fmt: skip
    kind = "collective"
    holds_memory = True
    depth = 4  # It is made by a step of `issue`, which a function of this package calls.
    call: Call
    group_rank: int

    def belong(self, call: Call, group_rank: int, request: Request, num_sms: int = 0) -> None:
        """Be a member's part of a call: whoever makes it says so at once, before it is submitted.

        A constructor that takes this too would be a call of Python's more, for each collective.

        Args:
            call: The calls of all members.
            group_rank: The member.
            request: What it asks for.
            num_sms: SMs that it will occupy; 0: its host runs it.
        """
        self.call = call
        self.group_rank = group_rank
        self.rank = call.group.ranks[group_rank]
        self.request = request
        self.inputs = request.source
        self.outputs = request.target
        self.num_sms = num_sms
        self.memory_bytes_per_ps = 0.0
        self.is_launch = num_sms > 0  # What the host runs is none.

    @property
    def module(self) -> str | None:
        """Return its kernel, one per reduction and type; what the host runs needs none."""
        return module_of(self.call.signature) if self.num_sms else None

    def begin(self) -> None:
        """Arrive: spin on some SMs until the collective lets this rank go."""
        if self.num_sms:  # As `Device.hold` does, here and below: a call of Python's less.
            device = self.stream.device
            sms = device.sms
            sms.held += self.num_sms
            if sms.users:
                device.pool.change(sms)
        self.call.arrive(self)

    def end(self) -> None:
        """Give back what it holds and complete."""
        end_together((self,))

    def fail(self, error: BaseException) -> None:
        """Fail, and let the others fail who wait for this rank."""
        super().fail(error)
        if isinstance(error, PeerDiedError):
            self.call.lose(self.group_rank, error.peer, error.peer_error)
        else:
            self.call.group.lose(self.rank, error)

    def move(self, call: Call, group_rank: int, request: Request) -> None:
        """Belong to a call of fewer members, which goes on without the others."""
        self.call, self.group_rank, self.request = call, group_rank, request
        self.inputs, self.outputs = request.source, request.target

    def leave(self) -> None:
        """Take no part any more; what has begun ends now, and its tensors stay as they are."""
        self.call = SkippedCall(self.call.group, self.call.signature)  # type: ignore[assignment]
        if self.start_ps >= 0 and not self.complete and self.stream.head is self:
            self.end()

    def drop(self) -> None:
        """Give back what it holds: the rank was aborted."""
        if self.num_sms and self.start_ps >= 0 and not self.complete:
            _give_back(self, self.stream.device)
        self.call.drop(self.group_rank)


def _give_back(operation: CollectiveOperation, device: Device) -> None:
    """Let kernels have the SMs and the bandwidth that a collective has held."""
    sms = device.sms
    sms.held -= operation.num_sms
    if sms.users:
        device.pool.change(sms)
    if operation.memory_bytes_per_ps:
        hbm = device.hbm
        hbm.held -= operation.memory_bytes_per_ps
        operation.memory_bytes_per_ps = 0.0
        if hbm.users:
            device.pool.change(hbm)


def end_together(operations: Sequence[CollectiveOperation]) -> None:
    """Let parts of one call give back what they hold and complete, one after the other.

    One loop: what a rank costs here, a program of 100,000 ranks pays for each of its calls.
    """
    call = operations[0].call
    last_issued, details = call.group.last_issued, call.details
    for operation in operations:
        if operation.num_sms:
            _give_back(operation, operation.stream.device)
        operation.details = details
        group_rank = operation.group_rank
        if last_issued[group_rank] is operation:
            last_issued[group_rank] = None  # It would keep the tensors alive.
        operation.conclude()
        request = operation.request
        for target in request.targets or (request.target,):
            writes = target.storage.writes
            if writes is not None:
                writes.settle()
