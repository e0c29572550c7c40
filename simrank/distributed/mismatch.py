"""The error of calls that differ: every distinct call, with the ranks and the line that made it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from simrank.distributed.call_lines import TO_FOLLOW, unlike_calls
from simrank.errors import CallVariant, CollectiveMismatchError, DistBackendError, RankState
from simrank.errors.travel import add_note

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from simrank.device import Operation
    from simrank.distributed.group import ProcessGroup
    from simrank.engine import CallSite
    from simrank.errors import UnlikeCalls


class MadeCall(NamedTuple):
    """One rank's call.

    Attributes:
        rank: Its global rank.
        columns: What it asked for, under the words of reports.
        site: Where, or None.
    """

    rank: int
    columns: Mapping[str, object]
    site: CallSite | None


def same_device(first: Operation, second: Operation) -> DistBackendError:
    """Build the error of two ranks whose communicator is on one device; the second calls now."""
    device = second.stream.device
    uses = []
    for operation in (first, second):
        site = operation.issued_at
        where = (None, None) if site is None else site.line()
        uses.append(RankState((operation.rank or 0,), operation.name, *where))
    return DistBackendError(device.engine.now_ps, device.index, uses)


def mismatch(
    group: ProcessGroup, number: int, calls: Iterable[MadeCall], absent: Sequence[int]
) -> CollectiveMismatchError:
    """Return the error of calls that should be equal.

    Args:
        group: Whose calls they are.
        number: Of the call in the group.
        calls: In the order in which they are told; equal ones from one line are told together.
        absent: Global ranks that have not called.
    """
    made = list(calls)
    library = group.world.comm_library
    unlike = unlike_calls(library, {group: [(call.rank, call.site) for call in made]})
    error = mismatch_error(group.engine.now_ps, group.name, number, made, absent, unlike)
    if library.follower is None:
        add_note(error, TO_FOLLOW)
    return error


def mismatch_error(
    now_ps: int,
    name: str,
    number: int,
    calls: Iterable[MadeCall],
    absent: Sequence[int],
    unlike: UnlikeCalls | None = None,
) -> CollectiveMismatchError:
    """Return the error of `mismatch`, where the ranks do not agree on their group yet."""
    ranks_of: dict[tuple[tuple[tuple[str, object], ...], CallSite | None], list[int]] = {}
    for rank, columns, site in calls:
        ranks_of.setdefault((tuple(columns.items()), site), []).append(rank)
    variants = []
    for (columns_key, site), ranks in ranks_of.items():
        texts = {word: str(value) for word, value in columns_key}
        file, line = (None, None) if site is None else site.line()
        variants.append(CallVariant(tuple(ranks), texts, file, line))
    return CollectiveMismatchError(now_ps, name, number, variants, absent, unlike=unlike)
