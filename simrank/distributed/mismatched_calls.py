"""The error of mismatched calls: every distinct call, with its ranks and line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from simrank.errors import (
    CallVariant,
    CollectiveMismatchError,
    DistBackendError,
    RankState,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from simrank.device import Operation
    from simrank.engine import CallSite, SourceLine


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


def mismatch_error(
    now_ps: int,
    name: str,
    number: int,
    calls: Iterable[MadeCall],
    absent: Sequence[int],
    **clues: Any,  # noqa: ANN401 - as the error has them
) -> CollectiveMismatchError:
    """Return the error of `mismatch`, where the ranks do not agree on their group yet."""
    # By line, not by instruction: since Python 3.12 one line may have several of a call.
    ranks_of: dict[tuple[tuple[tuple[str, object], ...], SourceLine | None], list[int]] = {}
    for rank, columns, site in calls:
        line = None if site is None else site.line()
        ranks_of.setdefault((tuple(columns.items()), line), []).append(rank)
    variants = []
    for (columns_key, place), ranks in ranks_of.items():
        texts = {word: str(value) for word, value in columns_key}
        variants.append(CallVariant(tuple(ranks), texts, *(place or (None, None))))
    return CollectiveMismatchError(now_ps, name, number, variants, absent, **clues)
