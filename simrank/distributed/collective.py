"""One rank's part of a collective, as an operation on a stream of its device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simrank.device import Operation
from simrank.distributed.kernel_names import module_of
from simrank.distributed.skipped import SkippedCall
from simrank.errors import PeerDiedError

if TYPE_CHECKING:
    from simrank.device import Stream
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
    depth = 5  # It is made by a step of `issue`, which a function of this package calls.

    def __init__(
        self, stream: Stream, call: Call, group_rank: int, request: Request, num_sms: int
    ) -> None:
        super().__init__(stream, call.name, None, request)
        self.call = call
        self.group_rank = group_rank
        self.rank = call.group.ranks[group_rank]
        self.request = request
        self.inputs, self.outputs = request.source, request.target
        self.num_sms = num_sms
        self.memory_bytes_per_ps = 0.0
        self.is_launch = num_sms > 0  # What the host runs is none.

    @property
    def module(self) -> str | None:
        """Return its kernel, one per reduction and type; what the host runs needs none."""
        return module_of(self.call.signature) if self.num_sms else None

    def begin(self) -> None:
        """Arrive: spin on some SMs until the collective lets this rank go."""
        if self.num_sms:
            device = self.stream.device
            device.hold(device.sms, self.num_sms)
        self.call.arrive(self)

    def take_memory(self, bytes_per_ps: float) -> None:
        """Take bandwidth of the device's memory for as long as it lasts."""
        device = self.stream.device
        device.hold(device.hbm, bytes_per_ps - self.memory_bytes_per_ps)
        self.memory_bytes_per_ps = bytes_per_ps

    def _give_back(self) -> None:
        device = self.stream.device
        device.hold(device.sms, -self.num_sms)
        if self.memory_bytes_per_ps:
            device.hold(device.hbm, -self.memory_bytes_per_ps)
            self.memory_bytes_per_ps = 0.0

    def end(self) -> None:
        """Give back what it holds and complete."""
        if self.num_sms:
            self._give_back()
        self.details = self.call.details
        last_issued = self.call.group.last_issued
        if last_issued[self.group_rank] is self:
            last_issued[self.group_rank] = None  # It would keep the tensors alive.
        super().end()
        for target in self.request.results:
            target.storage.settle()

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
            self._give_back()
        self.call.drop(self.group_rank)
