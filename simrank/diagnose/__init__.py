"""Explains the hang of a real job from its flight records, and proves the answer by replay."""

from __future__ import annotations

from simrank.diagnose.causes import Causes
from simrank.diagnose.records import Records, read_records
from simrank.diagnose.replay import Replayer
from simrank.diagnose.report import Diagnosis, not_known

__all__ = ["Diagnosis", "Records", "diagnose", "read_records"]


def diagnose(records: Records, *, replay: bool = True) -> Diagnosis:
    """Return why a job hangs.

    Args:
        records: Of its ranks, from `read_records`.
        replay: Whether to issue the unfinished calls again in the simulator, which is the proof;
            without it no answer has high confidence.
    """
    causes = Causes(records)
    cause = causes.find()
    tried = None
    if replay and cause is not None:
        tried = Replayer(records, causes.waits).prove(cause)
    return Diagnosis(
        cause,
        tried,
        num_records=len(records.lanes),
        num_ranks=len(records.world),
        num_calls=sum(map(len, records.lanes.values())),
        num_groups=len(records.groups),
        backends=tuple(sorted(records.backends)),
        versions=tuple(sorted(records.versions)),
        has_unfinished=any(causes.waits.of_rank.values()),
        not_known=not_known(records, cause),
        notes=tuple(records.notes),
    )
