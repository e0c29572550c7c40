"""The report for an engineer on call: a cause, its evidence, and what is not known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from simrank.diagnose.records import host_text
from simrank.errors import who_text

if TYPE_CHECKING:
    from simrank.diagnose.causes import Cause
    from simrank.diagnose.records import Records
    from simrank.diagnose.replay import Replay

MAX_LINES = 12
_MAX_WAITING = 4
_EVIDENCE = (
    "tried on records of gloo and of simulated NCCL, not yet on NCCL's records of a real job"
)


@dataclass(frozen=True)
class Diagnosis:
    """The answer for a job.

    Attributes:
        cause: Why it hangs; None if no hang is to be seen.
        replay: What came of issuing its calls again in the simulator; None if that was not asked.
        num_records, num_ranks: How many ranks have a record, of how many.
        num_calls, num_groups: What the records hold.
        backends, versions: Of the job's groups, and of the records' format.
        has_unfinished: Whether a call has not ended.
        older: Ranks whose record is older than a call that they came to, with the call.
        stands: Where ranks are by the stacks beside the records: pairs of ranks and a line.
        not_known: What the records do not tell.
        notes: What is wrong with files.
    """

    cause: Cause | None
    replay: Replay | None
    num_records: int
    num_ranks: int
    num_calls: int
    num_groups: int
    backends: tuple[str, ...]
    versions: tuple[str, ...]
    has_unfinished: bool
    older: tuple[tuple[int, str], ...]
    stands: tuple[tuple[str, str], ...]
    not_known: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def confidence(self) -> str | None:
        """Return `high`, `medium` or `low`; high only if a replay has proved the cause."""
        if self.cause is None:
            return None
        if self.cause.confidence == "high":
            return "high" if self.replay is not None and self.replay.is_proof else "medium"
        return self.cause.confidence

    def __str__(self) -> str:
        """Return at most twelve lines."""
        head = [self._head()]
        cause = self.cause
        if cause is None:
            stands = [
                f"  {who}: at {place} (stacks beside the records)" for who, place in self.stands
            ]
            return "\n".join([*head, self._no_hang(), *stands[:_MAX_WAITING], *self._end(None)])
        told, reason = cause.what, cause.why
        if cause.is_explained_by_reason:
            told, reason = cause.why, cause.what
        lines = [*head, f"CAUSE ({self.confidence} confidence): {told}", f"  {reason}"]
        lines += [f"  {who}: {what}" for who, what in cause.waiting[:_MAX_WAITING]]
        others = cause.victims - set(cause.ranks)
        if others:
            lines.append(f"  waiting because of it: {who_text(others)}")
        end = self._end(cause)
        return "\n".join([*lines[: MAX_LINES - len(end)], *end])

    def _head(self) -> str:
        files = f"{self.num_records} of {self.num_ranks} flight records"
        kind = f"{'/'.join(self.backends) or '?'}, version {'/'.join(self.versions)}"
        groups = f"{self.num_groups} group{'s' * (self.num_groups != 1)}"
        return f"{files} ({kind}): {self.num_calls:,} calls of {groups}"

    def _no_hang(self) -> str:
        if self.older:
            (rank, call), more = self.older[0], len(self.older) - 1
            others = f", and those of {more} more rank{'s' * (more > 1)}" * (more > 0)
            return (
                f"NO HANG: the job went on as its records were written: rank {rank}'s ends before"
                f" {call}, from which peers went on{others}: write all again at one time"
            )
        if self.has_unfinished:
            return (
                "NO HANG: calls are under way; none has waited for five seconds where records"
                " were written: write them again later"
            )
        if "gloo" in self.backends:
            return (
                "NO UNFINISHED CALL: every recorded one has ended; ranks that stand still may wait"
                " in a message, which gloo does not record: py-spy dump of each rank"
            )
        return "NO HANG: every recorded call has ended"

    def _end(self, cause: Cause | None) -> list[str]:
        lines = []
        if self.replay is not None:
            lines.append(f"  {self.replay.text}")
        if self.not_known:
            lines.append(f"  not known: {'; '.join(self.not_known)}")
        if cause is not None:
            lines.append(f"  next: {_next_step(cause)}")
        lines += [f"  note: {note}" for note in self.notes[:2]]
        return lines

    def as_dict(self) -> dict[str, Any]:
        """Return the answer as plain data, which `--json` prints."""
        cause, replay = self.cause, self.replay
        found: dict[str, Any] = {
            "hangs": cause is not None,
            "kind": None if cause is None else cause.kind,
            "ranks": [] if cause is None else list(cause.ranks),
            "confidence": self.confidence,
            "what": None if cause is None else cause.what,
            "why": None if cause is None else cause.why,
            "line": None,
            "waiting": [] if cause is None else [list(each) for each in cause.waiting],
            "victims": [] if cause is None else sorted(cause.victims - set(cause.ranks)),
            "replay": None,
            "older": [list(each) for each in self.older],
            "stands": [list(each) for each in self.stands],
            "not_known": list(self.not_known),
            "notes": list(self.notes),
            "num_records": self.num_records,
            "num_ranks": self.num_ranks,
            "num_calls": self.num_calls,
            "num_groups": self.num_groups,
            "backends": list(self.backends),
            "versions": list(self.versions),
            "evidence": _EVIDENCE,
        }
        if cause is not None and cause.place is not None:
            found["line"] = cause.place._asdict()
        if replay is not None:
            found["replay"] = replay._asdict()
        return found


def _next_step(cause: Cause) -> str:
    """Return the advice of a report's last lines."""
    place = cause.place
    if not cause.ranks:
        return "NCCL_DEBUG=INFO, nvidia-smi and dmesg of the nodes; the roots, splits and streams"
    if cause.kind in ("absent", "message", "no record"):
        after = "" if place is None else f"; what comes after {place}"
        return f"log and exit code of {who_text(cause.ranks)}, and py-spy dump of it{after}"
    where = "what leads to this call" if place is None else f"what leads to {place}"
    return f"{where} on {who_text(cause.ranks)}, and not on the others"


def where_hosts_are(records: Records) -> tuple[tuple[str, str], ...]:
    """Return the lines of the stacks beside the records with their ranks, most ranks first."""
    ranks: dict[str, list[int]] = {}
    for rank, stack in sorted(records.hosts.items()):
        ranks.setdefault(host_text(stack), []).append(rank)
    return tuple(
        (who_text(ranks[line]), line) for line in sorted(ranks, key=lambda e: -len(ranks[e]))
    )


def not_known(records: Records, cause: Cause | None) -> tuple[str, ...]:
    """Return the facts that the records of a job do not have."""
    found = []
    lanes = records.lanes.values()
    if records.missing:
        found.append(f"{who_text(records.missing)} left no record")
    if not any(any(lane.stacks) for lane in lanes):
        found.append("lines: the records have no stacks")
    num_lost = sum(bool(lane.num_lost) for lane in lanes)
    if num_lost:
        found.append(f"what {num_lost} rank(s) called before the calls that are kept")
    if cause is not None and any(records.groups[m.group].is_inferred for m in cause.meetings):
        found.append("members of groups, which are taken from their calls")
    if records.is_gloo:
        found.append("messages, and when calls began: gloo does not record them")
    return tuple(found)
