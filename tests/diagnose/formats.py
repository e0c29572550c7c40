"""One hanging job, in the forms that recorders of several versions and libraries write.

Source: `initWork`, `pointToPoint`, `collective` and `endCoalescing` of ProcessGroupNCCL.cpp (torch
2.4 to 2.14) and ProcessGroupXCCL.cpp (torch-xpu-ops), FlightRecorderHook.cpp (torch after 2.14),
FlightRecorder.cpp of torchcomms: which entries a call writes, with which numbers and states.
"""

from __future__ import annotations

import json
import pickle
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

PAIRS = {"1": [0, 1], "2": [2, 3]}  # Groups of two ranks beside the default one.
LINES = {"all_reduce": 10, "batch": 11, "uneven": 12, "gather": 13, "message": 14, "scatter": 15}


class Form(NamedTuple):
    """What a recorder writes.

    Attributes:
        version: Of the format.
        backend: In the names of calls.
        is_json: Whether it is the text of the debug server, without stacks.
        counts_batches: Whether a batch of messages counts as a collective, as up to version 2.2.
        has_parts: Whether each collective of a launch has an entry, as from version 2.7 on.
        has_ends: Whether an entry ends a launch; else each message has a state of its own.
        is_comms: Whether it is torchcomms', with one row of numbers and messages without ends.
    """

    version: str
    backend: str = "nccl"
    is_json: bool = False
    counts_batches: bool = False
    has_parts: bool = True
    has_ends: bool = True
    is_comms: bool = False


FORMS = {
    "2.0": Form("2.0", counts_batches=True, has_parts=False),
    "2.2": Form("2.2", counts_batches=True, has_parts=False),
    "2.4": Form("2.4", has_parts=False),
    "2.7": Form("2.7"),
    "2.10": Form("2.10"),
    "debug server": Form("2.10", is_json=True),
    "torch-xpu-ops": Form("2.10", "xccl"),
    "torch_musa": Form("2.4", "mccl", has_parts=False),
    "nccl2": Form("2.10", "nccl2", has_parts=False, has_ends=False),
    "torchcomms": Form("2.10", "ncclx", has_parts=False, has_ends=False, is_comms=True),
}


class Recorder:
    """The recorder of one rank."""

    def __init__(self, form: Form, rank: int) -> None:
        self.form = form
        self.rank = rank
        self.entries: list[dict[str, Any]] = []
        self.is_stuck = False
        self._collectives: Counter[str] = Counter()
        self._messages: Counter[str] = Counter()
        self._last: dict[str, int] = {}

    def collective(self, line: str, op: str, group: str, inputs: Any, outputs: Any) -> None:
        """Record a call of a group."""
        self._collectives[group] += 1
        self._add(line, op, group, inputs, outputs)

    def batch(self, line: str, group: str, peer: int) -> None:
        """Record a send and a receive that are one launch."""
        counter = self._collectives if self.form.counts_batches else self._messages
        counter[group] += self.form.has_ends
        own, other = (PAIRS.get(group, range(4)).index(rank) for rank in (self.rank, peer))
        for op in (f"send {own}->{other}", f"recv {own}<-{other}"):
            self._messages[group] += not self.form.has_ends
            self._add(line, op, group, [[8]], [[8]], is_part=self.form.has_ends)
        if self.form.has_ends:
            self._add(line, "coalesced", group, [], [])
            self.entries[-1]["is_p2p"] = self.form.has_parts  # Before 2.7 it is none.

    def message(self, line: str, group: str, peer: int) -> None:
        """Record a send to a higher rank, or the receive of it."""
        self._messages[group] += 1
        own, other = (PAIRS[group].index(rank) for rank in (self.rank, peer))
        op = f"send {own}->{other}" if own < other else f"recv {own}<-{other}"
        self._add(line, op, group, [[8]], [[8]])

    def uneven_gather(self, line: str) -> None:
        """Record an all_gather of shares of several sizes: broadcasts that are one launch."""
        self._collectives["0"] += 1
        if not self.form.has_ends:
            self._add(line, "all_gather", "0", [[self.rank + 1]], [[size] for size in range(1, 5)])
            return
        for size in range(1, 5) if self.form.has_parts else ():
            self._add(line, "_broadcast_oop", "0", [[size]], [[size]], is_part=True)
        end = "ALLGATHER_coalesced" if self.form.has_parts else "coalesced"
        self._add(line, end, "0", [], [])

    def scatter(self, line: str) -> None:
        """Record a scatter of rank 0, whose sizes NCCL's recorder has the other way round."""
        many, none = [[2]] * 4, [[0]]
        inputs, outputs = [[2]], many if self.rank == 0 else none
        if self.form.is_comms:
            inputs, outputs = (many if self.rank == 0 else []), [[2]]
        self.collective(line, "scatter", "0", inputs, outputs)

    def _add(
        self, line: str, op: str, group: str, inputs: Any, outputs: Any, *, is_part: bool = False
    ) -> None:
        form, number = self.form, len(self.entries)
        is_message = op.startswith(("send", "recv"))
        is_over = not (self.is_stuck or is_part)
        has_state = is_over and not form.is_comms
        desc = "default_pg" if group == "0" else "pair"
        entry = {
            "record_id": number,
            "pg_id": int(group),
            "process_group": (group, form.backend if form.is_comms else desc),
            "collective_seq_id": number if form.is_comms else self._collectives[group],
            "p2p_seq_id": 0 if form.is_comms else self._messages[group],
            "op_id": number,
            "profiling_name": f"{form.backend}:{op.partition(' ')[0] if form.is_comms else op}",
            "time_created_ns": 1_724_779_239_936_775_119 + number,
            "input_sizes": inputs,
            "input_dtypes": ["Undefined" if size == [0] else "Float" for size in inputs],
            "output_sizes": outputs,
            "output_dtypes": ["Undefined" if size == [0] else "Float" for size in outputs],
            "state": "completed" if has_state else "scheduled",
            "time_discovered_started_ns": None,
            "time_discovered_completed_ns": 1_724_779_239_975_811_724 if has_state else None,
            "retired": is_over,
            "timeout_ms": 600_000,
            "is_p2p": is_message and not form.is_comms,
        }
        if not form.is_json:
            where = {"name": "step", "filename": "/home/me/train.py", "line": LINES[line]}
            entry["frames"] = [where]
        self._last[group] = entry["p2p_seq_id" if is_message else "collective_seq_id"]
        self.entries.append(entry)

    def dump(self) -> dict[str, Any]:
        """Return the record as a dict."""
        groups = {"0": [0, 1, 2, 3]} | {n: pair for n, pair in PAIRS.items() if self.rank in pair}
        status = {  # Of the last call of a group, be it a collective or a message.
            group: {"last_enqueued_collective": last, "last_completed_collective": last - 1}
            for group, last in self._last.items()
        }
        return {
            "version": self.form.version,
            "pg_config": {
                name: {"name": name, "desc": "", "ranks": str(ranks)}
                for name, ranks in groups.items()
            },
            "pg_status": {} if self.form.is_comms or self.form.version == "2.0" else status,
            "entries": self.entries,
        }


def write_job(form: Form, folder: Path, *, skips: str) -> None:
    """Write the records of a job whose rank 1 leaves out a call in its third step.

    Args:
        form: Of the records.
        folder: Where to.
        skips: The call: a key of `LINES`.
    """
    for rank in range(4):
        recorder = Recorder(form, rank)
        for step in range(3):
            for line in LINES:
                is_skipped = step == 2 and line == skips
                recorder.is_stuck |= is_skipped
                if not (is_skipped and rank == 1):
                    _call(recorder, line)
        found = recorder.dump()
        path = folder / f"nccl_trace_rank_{rank}"
        path.write_bytes(
            json.dumps(found).encode() if form.is_json else pickle.dumps(found, protocol=2)
        )


def _call(recorder: Recorder, line: str) -> None:
    pair, peer = ("1" if recorder.rank < 2 else "2"), recorder.rank ^ 1
    match line:
        case "all_reduce":
            recorder.collective(line, "all_reduce", "0", [[64]], [[64]])
        case "batch" if recorder.rank < 2:  # The others do not take part.
            recorder.batch(line, "0", peer)
        case "uneven":
            recorder.uneven_gather(line)
        case "gather":
            recorder.collective(line, "_all_gather_base", pair, [[4]], [[8]])
        case "message":
            recorder.message(line, pair, peer)
        case "scatter":
            recorder.scatter(line)
