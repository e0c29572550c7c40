"""Flight records of a job, read into columns: what each rank asked of its groups.

torch writes a file per rank when its watchdog fires, or when it is asked to
(`TORCH_FR_DUMP_TEMP_FILE`, `TORCH_NCCL_DEBUG_INFO_TEMP_FILE`): a pickled dict, or JSON. A pickle
is read without looking up a class, so that no file can run anything.

Source: the keys of `_dump_fr_trace`, as a pickle and as JSON, of torch 2.12 to 2.14 (version
2.10), and of `_dump_nccl_trace` before (2.0 and later, whose entries have a `collective_seq_id`);
for what NCCL's recorder and those after it write of each call: ProcessGroupNCCL.cpp of torch 2.4
to 2.14, ProcessGroupXCCL.cpp of torch-xpu-ops, hooks/fr/FlightRecorder.cpp of torchcomms.
"""

from __future__ import annotations

import ast
import gc
import json
import os
import pickle
import re
import sys
from array import array
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import pairwise, takewhile
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from simrank.errors import FlightRecordError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

_NS_PER_S = 1_000_000_000
_MIN_WALL_NS = 10**17  # A time since 1970; simulated ones begin at 0.
_SEPARATOR = re.compile(r"[\\/]")  # Records may come from another system.
_NUMBER = re.compile(r"\d+")
_MESSAGE = re.compile(r"(send|recv) (\d+)(?:->|<-)(\d+)$")
_MESSAGES = ("send", "recv", "batch_op_issue")
_END = re.compile(r"(?:[A-Z_]+_)?coalesced$")  # Of a launch of several calls.
_NEEDED = (
    "record_id", "process_group", "collective_seq_id", "profiling_name", "input_sizes",
    "output_sizes", "state",
)  # fmt: skip
# Frames that are no line of the program: of torch, of simrank, of Python and of what has no file.
_BELOW = re.compile(
    r"[\\/]torch[\\/](?:distributed|nn|autograd|optim|utils|cuda|_\w+)[\\/]|[\\/]torch[\\/]\w+\.py$"
    r"|[\\/]simrank[\\/](?!.*tests)|[\\/]lib[\\/]python3[.\d]*[\\/](?!.*-packages)|^<|^\?"
)
_INSTALLED = re.compile(r"[\\/](?:site|dist)-packages[\\/]")


_FUNCTIONS = {
    "_all_gather_base": "all_gather_into_tensor",
    "_reduce_scatter_base": "reduce_scatter_tensor",
    "all_reduce_barrier": "barrier",
    "_broadcast_oop": "all_gather",  # Of shares of several sizes.
    "_reduce_oop": "reduce_scatter",
    "ALLGATHER_coalesced": "all_gather",
    "REDUCE_SCATTER_coalesced": "reduce_scatter",
}


class Group(NamedTuple):
    """A process group.

    Attributes:
        name: torch's name of it; "0" is the default one.
        desc: What the program calls it.
        ranks: Its members, by group rank.
        is_inferred: Whether the records do not tell its members: those that were seen in it.
    """

    name: str
    desc: str
    ranks: tuple[int, ...]
    is_inferred: bool = False

    @property
    def title(self) -> str:
        """Return its name in reports."""
        return self.desc if self.desc not in ("", "undefined") else f"group {self.name}"


class CallArguments(NamedTuple):
    """The arguments of a call, without its line.

    Attributes:
        op: torch's name of the operation: `all_reduce`, `_all_gather_base`, `send`.
        inputs, outputs: Sizes of its tensors.
        input_dtypes, output_dtypes: Their element types, as C++ calls them.
    """

    op: str
    inputs: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[int, ...], ...]
    input_dtypes: tuple[str, ...]
    output_dtypes: tuple[str, ...]

    def __str__(self) -> str:
        """Return `all_reduce Float[64]`."""
        shown = list(zip(self.input_dtypes, self.inputs, strict=False)) or list(
            zip(self.output_dtypes, self.outputs, strict=False)
        )
        return f"{self.name} {shown[0][0]}{list(shown[0][1])}" if shown else self.name

    @property
    def name(self) -> str:
        """Return the function's name, by which the program calls it."""
        return _FUNCTIONS.get(self.op, self.op)

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Return the types of what goes in, or of what comes out if nothing does."""
        return self.input_dtypes or self.output_dtypes

    @property
    def input_numel(self) -> int:
        """Return the number of elements that go in."""
        return sum(map(prod, self.inputs))

    @property
    def output_numel(self) -> int:
        """Return the number of elements that come out."""
        return sum(map(prod, self.outputs))


class StackLine(NamedTuple):
    """A line of a stack."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        """Return `train.py:95 in step`."""
        where = f"{_SEPARATOR.split(self.file)[-1]}:{self.line}"
        return where if self.function in ("", "<module>") else f"{where} in {self.function}"


Stack = tuple[StackLine, ...]  # From the innermost line of the program outwards.


def place_of(stack: Stack) -> StackLine | None:
    """Return the line to show of a stack: the innermost that is of no installed package."""
    own = (frame for frame in stack if not _INSTALLED.search(frame.file))
    return next(own, stack[0] if stack else None)


@dataclass(slots=True)
class CallColumns:
    """The last calls of one rank, oldest first, in columns.

    Attributes:
        rank: Which.
        file: Where they were read.
        written_s: When that was written, in seconds since 1970; 0 if nothing tells it.
        record_ids: Numbers of the entries, from the rank's first call on.
        groups: Group of each call, by its place in `Records.groups`.
        numbers: Number of the collective in its group; -1 for a message.
        asked: What it asks, by its place in `Records.asked`.
        stacks: Where it was called, by its place in `Records.stacks`; 0 is none.
        is_over: 1 if it has ended.
        created_ns: When it was called, in nanoseconds.
        sources, targets: Ranks of a message; -1 for a collective.
        is_host_time: Whether times are those of a real host.
        last_numbers: By group: number of the last collective that was called.
        last_over: By group: number of the last collective that has ended, if the record says it.
    """

    rank: int
    file: str
    written_s: float = 0.0
    record_ids: array[int] = field(default_factory=lambda: array("q"))
    groups: array[int] = field(default_factory=lambda: array("i"))
    numbers: array[int] = field(default_factory=lambda: array("q"))
    asked: array[int] = field(default_factory=lambda: array("i"))
    stacks: array[int] = field(default_factory=lambda: array("i"))
    is_over: bytearray = field(default_factory=bytearray)
    created_ns: array[int] = field(default_factory=lambda: array("q"))
    sources: array[int] = field(default_factory=lambda: array("i"))
    targets: array[int] = field(default_factory=lambda: array("i"))
    is_host_time: bool = False
    last_numbers: dict[int, int] = field(default_factory=dict)
    last_over: dict[int, int] = field(default_factory=dict)
    _by_group: dict[int, dict[int, int]] | None = None

    def __len__(self) -> int:
        """Return the number of calls that are kept."""
        return len(self.groups)

    @property
    def num_lost(self) -> int:
        """Return the number of calls before them, which were not kept."""
        return self.record_ids[0] if self.record_ids else 0

    def collectives(self, group: int) -> Mapping[int, int]:
        """Return the places of a group's collectives in the columns, by their number."""
        if self._by_group is None:
            found: defaultdict[int, dict[int, int]] = defaultdict(dict)
            for at, (of, number) in enumerate(zip(self.groups, self.numbers, strict=True)):
                if number >= 0:
                    found[of].setdefault(number, at)
            self._by_group = dict(found)
        return self._by_group.get(group, {})


@dataclass(slots=True)
class Records:
    """The flight records of a job.

    Attributes:
        lanes: Each rank that has a record.
        groups: The process groups.
        asked: What calls ask for.
        stacks: Where they were made; the first is none.
        world: All ranks that are known of.
        backends: For example `nccl`.
        versions: Of the format.
        notes: What is wrong with files.
        hosts: Where the main thread of a rank is, if stacks lie beside the records.
    """

    lanes: dict[int, CallColumns] = field(default_factory=dict)
    groups: list[Group] = field(default_factory=list)
    asked: list[CallArguments] = field(default_factory=list)
    stacks: list[Stack] = field(default_factory=lambda: [()])
    world: tuple[int, ...] = ()
    backends: set[str] = field(default_factory=set)
    versions: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)
    hosts: dict[int, Stack] = field(default_factory=dict)

    @property
    def missing(self) -> tuple[int, ...]:
        """Return the ranks without a record."""
        return tuple(rank for rank in self.world if rank not in self.lanes)

    @property
    def is_gloo(self) -> bool:
        """Return whether all is of gloo, whose records say less."""
        return self.backends == {"gloo"}

    def place(self, lane: CallColumns, at: int) -> StackLine | None:
        """Return the line of a call."""
        return place_of(self.stacks[lane.stacks[at]])


# ---- files ----


class _UnreadFormError(FlightRecordError):
    """A record is whole, of a form that would be misread."""


class _PlainUnpickler(pickle.Unpickler):
    """Plain containers only: a flight record names no class, so any name is refused."""

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401 - pickle's
        message = f"it asks for {module}.{name}, which no flight record does; nothing was run"
        raise FlightRecordError(message)

    def persistent_load(self, pid: Any) -> Any:  # noqa: ANN401 - pickle's
        raise FlightRecordError(f"it refers to {pid!r} outside of it, which no flight record does")


def read_records(
    paths: Iterable[str | os.PathLike[str]],
    on_file: Callable[[int, int], None] = lambda _num, _all: None,
) -> Records:
    """Read the flight records of a job.

    Args:
        paths: Files, and folders with all that is below them.
        on_file: Called after each file with how many were read, and of how many.

    Raises:
        FlightRecordError: No file is a flight record, or no name has its rank.
        OSError: A path cannot be read.
    """
    files = list(_files_in(paths))
    ranks = _ranks_of(files)
    builder = _Builder()
    was_enabled = gc.isenabled()
    gc.disable()  # Plain data has no cycles, and to look for some takes as long as to read it.
    try:
        for number, path in enumerate(files):
            builder.add(path, ranks.get(path))
            on_file(number + 1, len(files))
    finally:
        if was_enabled:
            gc.enable()
    return builder.finished()


def _files_in(paths: Iterable[str | os.PathLike[str]]) -> Iterator[Path]:
    for given in map(Path, paths):
        if not given.exists():
            raise FileNotFoundError(f"{given}: there is no such file or folder")
        if given.is_file():
            yield given
        for folder, folders, names in os.walk(given):
            folders.sort()
            yield from (Path(folder, name) for name in sorted(names))


def _ranks_of(paths: Sequence[Path]) -> dict[Path, int]:
    """Return the rank of each file: of the numbers in its path the last that tells files apart.

    Files of one kind have the same path but for numbers: `node1/nccl_trace_rank_12`.
    """
    kinds: defaultdict[str, list[Path]] = defaultdict(list)
    for path in paths:
        kinds[_NUMBER.sub("#", str(path))].append(path)
    found: dict[Path, int] = {}
    for alike in kinds.values():
        numbers = [[int(number) for number in _NUMBER.findall(str(path))] for path in alike]
        for column in list(zip(*numbers, strict=True))[::-1]:
            if len(set(column)) == len(alike):
                found |= dict(zip(alike, column, strict=True))
                break
    return found


def _content(path: Path) -> Any:  # noqa: ANN401 - of a file
    """Return the content of a file, or None if it is neither JSON nor a pickle."""
    with path.open("rb") as file:
        head = file.read(2)
        file.seek(0)
        if head[:1] in (b"{", b"["):
            return json.load(file)
        return _PlainUnpickler(file).load() if head[:1] == b"\x80" else None


class _Numbers(dict[Any, int]):
    """The place of each value in a list, which grows."""

    def __init__(self, values: list[Any]) -> None:
        super().__init__()
        self.values_ = values

    def __missing__(self, value: Any) -> int:  # noqa: ANN401 - any key
        self[value] = number = len(self.values_)
        self.values_.append(value)
        return number


class _Launches:
    """The launches of a rank, of one call or several, and the numbers of its collectives.

    A launch of several calls has an entry for each (of collectives from version 2.7 on), which
    stays "scheduled", and one that ends it, whose state is that of all. Recorders number:

    - NCCL's, and those made after it: collectives per group, messages per group.
    - torch's up to version 2.2: the same, but a batch of messages counts as a collective, on its
      ranks only (pytorch's issue 134833).
    - torchcomms: all calls of all groups in one row.

    Args:
        entries: Of the rank, in order.
    """

    def __init__(self, entries: Sequence[Mapping[str, Any]]) -> None:
        first = entries[0]
        backend = first["profiling_name"].partition(":")[0]
        self.is_torchcomms = first["process_group"][-1] == backend
        self.num_lost = first["collective_seq_id" if self.is_torchcomms else "record_id"]
        self.with_messages: set[int] = set()
        self.num_untold = 0  # Messages whose ends are not recorded.
        self._counted: Counter[int] = Counter()  # Batches that count as a collective; or calls.
        self._open: dict[int, tuple[tuple[int, int], list[int]]] = {}
        self._before: dict[int, int] = {}  # By group: number of messages before the open launch.

    def of(self, group: int, entry: Mapping[str, Any]) -> list[int]:
        """Return the places of the calls so far of an entry's launch."""
        key = entry["collective_seq_id"], entry.get("p2p_seq_id", 0)
        known = self._open.get(group)
        if known is None or known[0] != key:
            self._before[group] = known[0][1] if known else -1 if self.num_lost else 0
            known = self._open[group] = key, []
        return known[1]

    def end_batch(self, group: int) -> None:
        """Note the end of a batch of messages: it counts as a collective, or as a message."""
        num_messages = self._open[group][0][1]
        self._counted[group] += num_messages in (0, self._before[group])

    def number(self, group: int, entry: Mapping[str, Any]) -> int:
        """Return the number of a collective among its group's."""
        if self.is_torchcomms:
            self._counted[group] += 1
            return self._counted[group] + int(self.num_lost)
        return int(entry["collective_seq_id"]) - self._counted[group]

    def check(self, numbered: Collection[int]) -> None:
        """Check that the numbers of groups with collectives do not depend on lost calls.

        Raises:
            FlightRecordError: They do.
        """
        if self.is_torchcomms:
            is_mixed = len(self._open) > 1 or bool(self.with_messages)
        else:
            is_mixed = any(self._counted[group] for group in numbered)
        if self.num_lost and is_mixed:
            raise _UnreadFormError(
                f"its first {self.num_lost} calls are lost, on which the numbers of its "
                "collectives depend (torchcomms; torch's up to 2.2 with batches of messages): "
                "set TORCH_FR_BUFFER_SIZE higher"
            )


class _Builder:
    """Gathers what files hold."""

    def __init__(self) -> None:
        self.records = Records()
        self._groups: list[tuple[str, str, tuple[int, ...] | None]] = []
        self._group_numbers = _Numbers(self._groups)
        self._asked = _Numbers(self.records.asked)
        self._stacks = _Numbers(self.records.stacks)
        self._stacks[()] = 0
        self._world: set[int] = set()
        self._unread: list[tuple[Path, int | None]] = []

    def add(self, path: Path, rank: int | None) -> None:
        """Read one file; what is wrong with it becomes a note."""
        try:
            if not path.stat().st_size:
                raise FlightRecordError("it is empty: its rank was ended as it wrote it")
            found = _content(path)
            if found is None:
                self._add_text(path, rank)
                return
            if isinstance(found, list) and "profiling_name" in str(found[:1]):
                found = {"version": "1.0 (a list)", "entries": found}  # torch 2.2's
            if not isinstance(found, dict) or not {"entries", "pg_config"} & found.keys():
                return  # A settings file, say.
            if rank is None:
                self.records.notes.append(f"{path}: its name does not tell its rank: left out")
                return
            lane = self._lane(rank, path, found)
        except _UnreadFormError as error:  # Its rank is not dead: no note.
            raise FlightRecordError(f"{path}: {error}") from None
        except (FlightRecordError, pickle.UnpicklingError, ValueError, EOFError) as error:
            self._unread.append((path, rank))
            self.records.notes.append(f"{path.name}: not read: {error or type(error).__name__}")
            return
        except (KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
            self._unread.append((path, rank))
            note = f"{path.name}: not read: no flight record that is known ({error!r})"
            self.records.notes.append(note)
            return
        self._keep(lane)

    def _keep(self, lane: CallColumns) -> None:
        """Keep a rank's record: of two the one with stacks, else the newer."""
        known = self.records.lanes.get(lane.rank)
        if known is not None:
            better = max(known, lane, key=lambda each: (any(each.stacks), each.written_s))
            worse = lane if better is known else known
            if any(worse.stacks) or not any(better.stacks):
                note = f"two records of rank {lane.rank}: {Path(worse.file).name} left out"
                self.records.notes.append(note)
            lane = better
        self.records.lanes[lane.rank] = lane

    def _lane(self, rank: int, path: Path, found: Mapping[str, Any]) -> CallColumns:
        lane = CallColumns(rank, str(path), written_s=path.stat().st_mtime)
        entries = _entries_of(found)
        self.records.versions.add(str(found.get("version", "?")))
        members = self._members(found.get("pg_config") or {})
        if not entries:
            return lane
        groups: dict[Any, int] = {}
        frames: dict[Any, StackLine | None] = {}
        by_id: dict[str, int] = {}
        launches = _Launches(entries)
        for entry in entries:
            key = entry["process_group"]
            key = tuple(key) if isinstance(key, (list, tuple)) else (str(key), "")
            group = groups.get(key)
            if group is None:
                ranks = members.get(key[0])
                own = ranks if ranks and rank in ranks else None
                desc = "" if launches.is_torchcomms else str(key[1])
                group = groups[key] = self._group_numbers[str(key[0]), desc, own]
                by_id[str(entry.get("pg_id", ""))] = group
            self._add_entry(lane, group, entry, frames, launches)
        launches.check(lane.last_numbers)
        if launches.num_untold:
            note = f"{path.name}: the ends of {launches.num_untold} message(s) are not told"
            self.records.notes.append(note)
        for name, status in (found.get("pg_status") or {}).items():
            known = by_id.get(str(name))
            if known is not None and known not in launches.with_messages:
                self._add_status(lane, known, status)
        return lane

    def _members(self, config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
        found = {}
        for name, each in config.items():
            ranks = each.get("ranks", ())
            members = tuple(ast.literal_eval(ranks)) if isinstance(ranks, str) else tuple(ranks)
            found[str(name)] = tuple(int(rank) for rank in members)
            self._world.update(found[str(name)])
        return found

    def _add_status(self, lane: CallColumns, group: int, status: Mapping[str, Any]) -> None:
        """Note the last collective that has ended, unless messages are counted with them."""
        last = int(status.get("last_enqueued_collective", -1))
        if last == lane.last_numbers.get(group) and not self.records.is_gloo:
            lane.last_over[group] = int(status.get("last_completed_collective", -1))

    def _add_entry(
        self,
        lane: CallColumns,
        group: int,
        entry: Mapping[str, Any],
        frames: dict[Any, StackLine | None],
        launches: _Launches,
    ) -> None:
        backend, _, name = entry["profiling_name"].rpartition(":")
        self.records.backends.add(backend or "unknown")
        message = _MESSAGE.match(name)
        is_message = name.startswith(_MESSAGES) or entry.get("is_p2p", False)
        # Those that record no events retire what has ended; NCCL's also what has timed out.
        is_retired = (backend == "gloo" or launches.is_torchcomms) and bool(entry.get("retired"))
        is_over = entry["state"] == "completed" or is_retired
        launch = launches.of(group, entry)
        if is_message or entry.get("p2p_seq_id"):
            launches.with_messages.add(group)
        if _END.match(name) and (launch or is_message):
            for at in launch:
                lane.is_over[at] |= is_over
            if launch and lane.numbers[launch[0]] < 0:
                launches.end_batch(group)
            return
        if launch and not is_message:
            lane.is_over[launch[0]] &= is_over
            return
        launches.num_untold += is_message and message is None
        number = -1
        if not is_message:
            number = lane.last_numbers[group] = launches.number(group, entry)
        launch.append(len(lane))
        created_ns = int(entry.get("time_created_ns") or 0)
        lane.is_host_time = lane.is_host_time or created_ns > _MIN_WALL_NS
        lane.record_ids.append(entry["record_id"])
        lane.groups.append(group)
        lane.numbers.append(number)
        lane.asked.append(self._asked[_asked(name.split(" ")[0], entry)])
        lane.stacks.append(self._stacks[_stack(entry.get("frames") or (), frames)])
        lane.is_over.append(is_over)
        lane.created_ns.append(created_ns)
        first, second = (int(message[2]), int(message[3])) if message else (-1, -1)
        source, target = (second, first) if name.startswith("recv") else (first, second)
        lane.sources.append(source)
        lane.targets.append(target)

    def _add_text(self, path: Path, rank: int | None) -> None:
        """Keep the stacks of a text: py-spy's of one rank, or the debug server's of all."""
        with path.open(errors="replace") as file:
            text = file.read(_MAX_TEXT)
        parts = re.split(r"^=== Rank (\d+).*$", text, flags=re.MULTILINE)
        bodies = list(zip(map(int, parts[1::2]), parts[2::2], strict=True))
        if not bodies and rank is not None:
            bodies = [(rank, text)]
        for of, body in bodies:
            stack = _main_thread(body)
            if stack:
                self.records.hosts[of] = stack

    def finished(self) -> Records:
        """Return the records, with members of groups that no record tells."""
        records = self.records
        if not records.lanes:
            raise FlightRecordError(
                "; ".join(["there is no flight record here", *records.notes[:3]])
            )
        kinds = {_NUMBER.sub("#", lane.file) for lane in records.lanes.values()}
        for path, rank in self._unread:
            if rank is not None and _NUMBER.sub("#", str(path)) in kinds:
                self._world.add(rank)
        # A gap in the names: a missing record.
        self._world |= set(range(max([*records.lanes, *self._world]) + 1))
        records.world = tuple(sorted(self._world))
        seen: defaultdict[int, set[int]] = defaultdict(set)
        for rank, lane in records.lanes.items():
            for group in set(lane.groups):
                seen[group].add(rank)
        for number, (name, desc, ranks) in enumerate(self._groups):
            is_all = desc == "default_pg" or name == "0"
            inferred = records.world if is_all else tuple(sorted(seen[number]))
            records.groups.append(Group(name, desc, ranks or inferred, is_inferred=ranks is None))
        for lane in records.lanes.values():
            _to_global(lane, records.groups)
        return records


def _to_global(lane: CallColumns, groups: Sequence[Group]) -> None:
    """Make the ends of messages, which are group ranks, ranks."""
    for at, number in enumerate(lane.numbers):
        ranks = groups[lane.groups[at]].ranks
        if number < 0:
            for ends in (lane.sources, lane.targets):
                ends[at] = ranks[ends[at]] if 0 <= ends[at] < len(ranks) else -1


def _entries_of(found: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the entries of a record in their order.

    Raises:
        FlightRecordError: It is of a form that would be misread.
    """
    version = str(found.get("version", "2.0"))
    entries = found.get("entries") or []
    lacking = ", ".join(key for key in _NEEDED if entries and key not in entries[0])
    if version.partition(".")[0] != "2":
        why = f", its calls have no {lacking}" if lacking else ""
        raise _UnreadFormError(f"it is of version {version}{why}; 2.0 to 2.10 are read")
    if lacking:
        raise FlightRecordError(f"its calls have no {lacking}")
    if any(a["record_id"] > b["record_id"] for a, b in pairwise(entries)):
        entries = sorted(entries, key=lambda entry: entry["record_id"])
    num_ids = entries[-1]["record_id"] - entries[0]["record_id"] + 1 if entries else 0
    if num_ids > len(entries) or (found.get("pg_status") and not entries):
        why = "calls are left out of it, those that ended or all"
        raise _UnreadFormError(f"{why}: set TORCH_INCLUDE_ONLY_ACTIVE=0")
    for entry in entries:
        if not entry["profiling_name"]:  # torch_npu's
            why = f"call {entry['record_id']} has no name"
            raise _UnreadFormError(f"{why}, as in torch_npu's records: version {version}")
        if entry["profiling_name"].startswith("c10d:"):
            why = "it does not tell which calls have ended"
            raise _UnreadFormError(f"{why}: FlightRecorderHook of torch 2.14 wrote it")
    return entries[_num_cut(entries) :]


def _num_cut(entries: Sequence[Mapping[str, Any]]) -> int:
    """Return the number of entries of an ended launch whose first ones may be lost."""
    if not entries or not entries[0]["record_id"]:
        return 0
    keys = ("process_group", "collective_seq_id", "p2p_seq_id")
    first = [entries[0].get(key) for key in keys]
    launch = list(takewhile(lambda each: [each.get(key) for key in keys] == first, entries))
    name = launch[-1]["profiling_name"].rpartition(":")[2]
    return len(launch) if _END.match(name) and launch[-1]["state"] == "completed" else 0


def _asked(op: str, entry: Mapping[str, Any]) -> CallArguments:
    inputs, outputs = _tensors(entry, "input"), _tensors(entry, "output")
    sizes = len(inputs[0]), len(outputs[0])
    if op == "scatter" and (sizes[1] > max(sizes[0], 1) or not sizes[1]):
        inputs, outputs = outputs, inputs  # NCCL's names what comes out first.
    return CallArguments(op, inputs[0], outputs[0], inputs[1], outputs[1])


def _tensors(
    entry: Mapping[str, Any], side: str
) -> tuple[tuple[tuple[int, ...], ...], tuple[str, ...]]:
    """Return sizes and types of what goes in or comes out."""
    sizes = tuple(map(tuple, entry[f"{side}_sizes"]))
    dtypes = tuple(entry.get(f"{side}_dtypes") or ())
    if "Undefined" in dtypes:  # Where only a root has tensors, on the others.
        return (), ()
    return sizes, dtypes


def _stack(frames: Iterable[Mapping[str, Any]], known: dict[Any, StackLine | None]) -> Stack:
    """Return the lines of a call's stack that are the program's, or of its packages."""
    found = []
    for frame in frames:
        key = frame["filename"], frame["line"], frame["name"]
        if key not in known:
            is_below = _BELOW.search(str(key[0])) is not None
            known[key] = None if is_below else StackLine(str(key[0]), int(key[1]), str(key[2]))
        own = known[key]
        if own is not None:
            found.append(own)
    return tuple(found)


# ---- stacks of hosts, as py-spy prints them ----

_MODULES = sys.stdlib_module_names | {"torch"}

_MAX_TEXT = 20_000_000  # Characters; a larger file is no stack.


def _main_thread(text: str) -> Stack:
    """Return the stack of the main thread from py-spy's text, or ()."""
    for thread in re.split(r"^(?=Thread )", text, flags=re.MULTILINE):
        if "MainThread" in thread.partition("\n")[0]:
            lines = re.findall(r"^\s+(.+?) \((.+?):(\d+)\)", thread, flags=re.MULTILINE)
            return tuple(StackLine(file, int(line), name) for name, file, line in lines)
    return ()


def host_text(stack: Stack) -> str:
    """Return `train.py:41 in step, in select of selectors.py`.

    py-spy cuts off the folders of what is installed.
    """
    inner = stack[0]
    is_program = (
        _SEPARATOR.split(frame.file)[0].removesuffix(".py") not in _MODULES for frame in stack
    )
    place = next((f for f, is_own in zip(stack, is_program, strict=True) if is_own), inner)
    below = "" if place is inner else f", in {inner.function} of {inner.file}"
    return f"{place}{below}"
