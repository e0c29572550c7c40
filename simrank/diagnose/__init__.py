"""Explains the hang of a real job from its flight records, and proves the answer by replay."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simrank.config.files import write_text
from simrank.diagnose.causes import Causes
from simrank.diagnose.page import hang_page
from simrank.diagnose.records import Records, read_records
from simrank.diagnose.replay import Replayer
from simrank.diagnose.report import Diagnosis, not_known, where_hosts_are

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Diagnosis", "Records", "diagnose", "read_records"]


def diagnose(records: Records, *, replay: bool = True, page: str | Path | None = None) -> Diagnosis:
    """Return the cause of a job's hang.

    Args:
        records: Of its ranks, from `read_records`.
        replay: Whether to issue the unfinished calls again in the simulator, which is the proof;
            without it no answer has high confidence.
        page: Where to write an HTML page with a lane of calls for each rank; None: nowhere.

    Raises:
        OSError: The page cannot be written.
    """
    causes = Causes(records)
    cause = causes.find()
    tried = None
    if replay and cause is not None:
        tried = Replayer(records, causes.waits).prove(cause)
    found = Diagnosis(
        cause,
        tried,
        num_records=len(records.lanes),
        num_ranks=len(records.world),
        num_calls=sum(map(len, records.lanes.values())),
        num_groups=len(records.groups),
        backends=tuple(sorted(records.backends)),
        versions=tuple(sorted(records.versions)),
        has_unfinished=any(causes.waits.of_rank.values()),
        older=tuple((rank, causes.title(call)) for rank, call in sorted(causes.older.items())),
        stands=where_hosts_are(records),
        not_known=not_known(records, cause),
        notes=tuple(records.notes),
    )
    if page is not None:
        write_text(page, hang_page(records, causes.waits, found))
    return found
