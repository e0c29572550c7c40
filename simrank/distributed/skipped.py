"""What a rank calls that sits out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simrank.distributed.collective import CollectiveOperation
    from simrank.distributed.group import ProcessGroup
    from simrank.distributed.request import Signature


class SkippedCall:
    """What a member calls that sits out: it ends as it begins, and moves nothing.

    Attributes:
        group: The group.
        signature: What was asked for.
        name: For reports.
        details: None: there are no facts.
    """

    details: dict[str, Any] | None = None

    def __init__(self, group: ProcessGroup, signature: Signature) -> None:
        self.group = group
        self.signature = signature
        self.name = f"{signature.op} on group '{group.name}', which this rank sits out"

    def arrive(self, operation: CollectiveOperation) -> None:
        """End."""
        operation.end()

    def lose(self, group_rank: int, peer: int, error: BaseException) -> None:
        """Do nothing: nobody waits for it."""

    def drop(self, group_rank: int) -> None:
        """Do nothing, as `lose`."""
