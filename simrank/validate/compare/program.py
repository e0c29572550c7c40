"""Jobs that run on both sides: the program of a rank, its calls and records.

The simulator writes the same records as torch does at the same places: where a process group is
asked, by any caller (a program, DDP's reducer in C++, an object collective). A record's group is a
name that each side chooses; what is compared are its ranks.
"""

from __future__ import annotations

import importlib
import os
import pickle
import random
import runpy
import sys
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from importlib import util
from math import prod
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any

import numpy as np

from simrank.distributed.flight_recorder import FlightRecorder, dtype_name
from simrank.errors import ConfigError, ConfigProblem, SimrankError
from simrank.isolation.carrier_choice import will_import
from simrank.isolation.ledger import Ledger
from simrank.multiprocessing.script import load_script, program_imports
from simrank.validate.compare.differences import captured
from simrank.validate.reset import SEED

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from simrank.distributed.flight_recorder import CallRecord


# ---- jobs that run on both sides, and the records of their ranks ----

RETURNED, RAISED, WAITS, DIED = "returned", "raised", "waits", "died"
_MAKES_GROUP = "init_process_group"


class NoFunctionError(ConfigError):
    """The file lacks the requested function."""


class MissingError(SimrankError):
    """This machine lacks what the real side needs: torch, triton, or GPUs."""


@dataclass(frozen=True, slots=True)
class Job:
    """A program and the ranks that it runs on.

    Attributes:
        path: Its file.
        function: The function of it that is called with rank and world size; None: the file is run
            as `__main__`.
        args: The command line of a file that is run.
        num_ranks: How many ranks.
        backend: "gloo" or "nccl".
        makes_group: Whether the file makes the default process group itself.
        uses_torch: Whether it imports torch.
        is_simulated: Whether it imports simrank instead: real processes cannot run it.
    """

    path: str
    function: str | None
    args: tuple[str, ...]
    num_ranks: int
    backend: str
    makes_group: bool
    uses_torch: bool
    is_simulated: bool = False

    @classmethod
    def of(cls, program: str, args: tuple[str, ...], num_ranks: int, backend: str) -> Job:
        """Return the job of `FILE.py` or `FILE.py:function`.

        A file that calls `init_process_group` anywhere makes its own group, as one that is run as
        a script does; other functions find one of the backend.

        Raises:
            ConfigError: There is no such file.
            SimrankError: It is no Python.
        """
        path, colon, function = program.rpartition(":")
        if not colon or not function.isidentifier():
            path, function = program, ""
        code = load_script(path).code
        makes_group = not function or _names(code, _MAKES_GROUP)
        with program_imports(Path(path).absolute().parent):
            uses = will_import(code, ("torch", "simrank"))
        facts = (path, function or None, args, num_ranks, backend, makes_group)
        return cls(*facts, "torch" in uses, uses == ["simrank"])

    @property
    def title(self) -> str:
        """The title, for reports."""
        return f"{self.path}:{self.function}" if self.function else self.path


def _names(code: CodeType, name: str) -> bool:
    """Return whether code, or nested code, mentions a name."""
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    return name in code.co_names or any(_names(each, name) for each in inner)


@dataclass(frozen=True, slots=True)
class Issued:
    """One collective or message that a rank issued.

    Attributes:
        op: For example `all_reduce`, or `send 0->1` between ranks of the group.
        elements: What goes in, as elements by type; a list is one tensor to some backends and many
            to others.
        results: What comes out, likewise.
        ranks: The group's global ranks.
        shapes: Both for reports.
        inputs: The shapes of what goes in; what gloo makes of a call depends on them.
        file: Where, in the user's program; None: from C++.
        line: The line in it.
    """

    op: str
    elements: Mapping[str, int]
    results: Mapping[str, int]
    ranks: tuple[int, ...]
    shapes: str = field(compare=False)
    inputs: tuple[tuple[int, ...], ...] = field(compare=False)
    file: str | None = field(default=None, compare=False)
    line: int | None = field(default=None, compare=False)


@dataclass(slots=True)
class RankRecord:
    """The record of one rank.

    Attributes:
        rank: The rank.
        ending: `RETURNED`, `RAISED`, `WAITS` (for others that never come) or `DIED`.
        value: What it returned, captured.
        error: The class of what it raised, as a name; for a rank that waits, where it does.
        error_kinds: That name and those of what the class derives from.
        text: The error's first line.
        file: Where it raised or waits, in the user's program.
        line: The line in it.
        collectives: In the order of issue.
        messages: Likewise.
        num_lost: Earlier ones that the recorder had no room for.
        time_us: From the call of the program to its end, with what its device still did.
    """

    rank: int
    ending: str = RETURNED
    value: Any = None
    error: str = ""
    error_kinds: tuple[str, ...] = ()
    text: str = ""
    file: str | None = None
    line: int | None = None
    collectives: list[Issued] = field(default_factory=list)
    messages: list[Issued] = field(default_factory=list)
    num_lost: int = 0
    time_us: float | None = None


@dataclass(slots=True)
class RunSide:
    """One of the two runs.

    Attributes:
        about: On what it ran.
        records: Of each rank.
        failure: What the whole run ended with, or "".
        device: The GPU's name, or "" where there is none.
        per_node: Ranks that share a node; None: all of them.
    """

    about: str
    records: list[RankRecord]
    failure: str = ""
    device: str = ""
    per_node: int | None = None


# ---- the program of a rank and its calls, recorded in the same way on both sides ----

_OWN = str(Path(__file__).resolve().parents[2])


def recorded(job: Job, rank: int, body: Callable[[], Any]) -> RankRecord:
    """Run a rank's program, and return its record, exceptions included."""
    record = RankRecord(rank)
    if job.backend == "gloo":  # Which moves host tensors: there is no GPU on either side.
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    _seed()
    start = time.perf_counter()
    try:
        value = body()
        _synchronize()
        record.time_us = (time.perf_counter() - start) * 1e6
        record.value = captured(value)
    except SystemExit as error:
        if _is_simulators(error):
            raise
        if error.code not in (None, 0):
            _note(record, error)
    except NoFunctionError:
        raise
    except Exception as error:  # noqa: BLE001 - what is compared
        _note(record, error)
    return record


def _is_simulators(error: SystemExit) -> bool:
    """Return whether a rank is being ended from outside."""
    return type(error) is not SystemExit


def _note(record: RankRecord, error: BaseException) -> None:
    record.ending = RAISED
    record.error = type(error).__name__
    ours = type(error).__module__.startswith("simrank")
    record.error_kinds = tuple(kind.__name__ for kind in type(error).__mro__ if ours)
    record.text = str(error).partition("\n")[0]
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if is_users(frame.filename):
            record.file, record.line = frame.filename, frame.lineno
            break


def is_users(file: str) -> bool:
    """Whether a file is of the user's program: neither simrank's, nor torch's, nor Python's own."""
    if file.startswith(("<", _OWN)) or "site-packages" in file:
        return False
    library = str(Path(os.__file__).parent)
    return not file.startswith(library)


def _seed() -> None:
    random.seed(SEED)
    np.random.seed(SEED)
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(SEED)


def _synchronize() -> None:
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def called(job: Job, rank: int) -> Any:  # noqa: ANN401 - any value
    """Import the program's module and call its function; in a rank that has its process group.

    Raises:
        NoFunctionError: The module has no such function.
    """
    path = Path(job.path).absolute()
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    function = getattr(_module(path), job.function or "", None)
    if not callable(function):
        got = f"no function {job.function}"
        raise NoFunctionError(ConfigProblem(job.path, None, "", "a function of the file", got))
    return function(rank, job.num_ranks)


def _module(path: Path) -> Any:  # noqa: ANN401 - a module
    found = util.find_spec(path.stem)
    if found is not None and found.origin == str(path):
        return importlib.import_module(path.stem)
    spec = util.spec_from_file_location(path.stem, path)  # Another of that name comes first.
    assert spec is not None, "a file that has been read before"
    assert spec.loader is not None, "likewise"
    module = util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def executed(job: Job) -> None:
    """Run the file as a script of torchrun's, in a real process."""
    sys.argv[:] = [job.path, *job.args]
    sys.path.insert(0, str(Path(job.path).absolute().parent))
    runpy.run_path(job.path, run_name="__main__")


# ---- the calls of a rank, from torch's flight recorder on either side ----

BUFFER = ("TORCH_FR_BUFFER_SIZE", "100000")  # Assumed: more calls than a test makes.
_BATCH = "coalesced"


class Kept(FlightRecorder):
    """The simulator's flight recorder with its records in memory.

    Attributes:
        calls: By rank, once the run is over: collectives and messages.
        num_lost: By rank, the earlier ones that there was no room for.
    """

    def __init__(self) -> None:
        super().__init__("")
        self.calls: dict[int, tuple[list[Issued], list[Issued]]] = {}
        self.num_lost: dict[int, int] = {}

    def write(self) -> None:
        """Save the calls of every rank."""
        if not self.calls:
            self.calls = {
                rank: _split([_of_entry(entry) for entry in log.entries])
                for rank, log in self._ranks.items()
            }
            self.num_lost = {
                rank: log.num_entries - len(log.entries) for rank, log in self._ranks.items()
            }


def _of_entry(entry: CallRecord) -> tuple[Issued, bool]:
    facts = entry.as_dict()
    ranks = tuple(int(rank) for rank in entry.log.group.ranks)
    return _issued(facts, ranks), facts["is_p2p"]


def _split(found: Sequence[tuple[Issued, bool]]) -> tuple[list[Issued], list[Issued]]:
    collectives = [call for call, is_message in found if not is_message]
    messages = [call for call, is_message in found if is_message and call.op != _BATCH]
    return collectives, messages


def _issued(facts: Mapping[str, Any], ranks: tuple[int, ...]) -> Issued:
    """Return a record of torch's format as a call."""
    ways = [(facts[f"{way}_dtypes"], facts[f"{way}_sizes"]) for way in ("input", "output")]
    op = facts["profiling_name"].partition(":")[2]
    frames = ((frame["filename"], frame["line"]) for frame in facts.get("frames", ()))
    site = next((each for each in frames if is_users(each[0])), (None, None))
    return _call(op, ways, ranks, site)


Tensors = tuple["Sequence[str]", "Sequence[Sequence[int]]"]  # Types, and as many shapes.


def _call(
    op: str, ways: Sequence[Tensors], ranks: tuple[int, ...], site: tuple[str | None, int | None]
) -> Issued:
    shown = []
    for dtypes, shapes in ways:
        each = [f"{dtype}{list(shape)}" for dtype, shape in zip(dtypes, shapes, strict=True)]
        shown.append(", ".join(dict.fromkeys(each)) + (f" x {len(each)}" if len(each) > 1 else ""))
    text = " to ".join(dict.fromkeys(filter(None, shown)))
    elements, results = (_elements(*way) for way in ways)
    inputs = tuple(tuple(shape) for shape in ways[0][1])
    return Issued(op, elements, results, ranks, text, inputs, *site)


def _elements(dtypes: Sequence[str], shapes: Sequence[Sequence[int]]) -> dict[str, int]:
    """Return the number of elements by type."""
    found: Counter[str] = Counter()
    for dtype, shape in zip(dtypes, shapes, strict=True):
        found[dtype] += prod(shape)
    return {dtype: number for dtype, number in found.items() if number}


class Followed:
    """The calls of a real rank, from now on.

    Args:
        backend: "gloo" or "nccl".

    Attributes:
        num_lost: Calls that the recorder had no room for, once `calls` has been asked.
    """

    def __init__(self, backend: str) -> None:
        self.num_lost = 0
        self._c10d: Any = importlib.import_module("torch.distributed.distributed_c10d")
        bindings = importlib.import_module("torch._C._distributed_c10d")
        name = "_dump_nccl_trace" if backend == "nccl" else "_dump_fr_trace"
        self._dump: Callable[[], bytes] = getattr(bindings, name)
        self._is_gloo = backend == "gloo"
        before = self._entries()
        self._first_id = before[-1]["record_id"] + 1 if before else 0  # Of the calls to come.
        self._groups: list[tuple[int, str, tuple[int, ...]]] = []
        self._messages: list[Issued] = []
        self._replaced = Ledger(__name__)

    def __enter__(self) -> Followed:
        """Begin."""
        for group, members in self._c10d._world.pg_group_ranks.items():  # noqa: SLF001 - torch has no list of groups
            if hasattr(group, "group_name"):  # Not what stands for groups of others.
                self._groups.append((0, group.group_name, tuple(members)))
        name = "_new_process_group_helper"
        self._replaced.replace(self._c10d, name, self._making(getattr(self._c10d, name)))
        if self._is_gloo:  # Whose messages torch's recorder leaves out.
            kind = self._c10d.ProcessGroup
            for name in ("send", "recv", "recv_anysource"):
                self._replaced.replace(kind, name, self._sending(name, getattr(kind, name)))
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the patched functions."""
        self._replaced.restore()

    def _entries(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = pickle.loads(self._dump()).get("entries", [])
        return found

    def _making(self, original: Any) -> Any:  # noqa: ANN401 - torch's
        def make(group_size: int, group_rank: int, ranks: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - torch's
            members = tuple(ranks) or tuple(range(group_size))
            before_ns = time.time_ns()
            made = original(group_size, group_rank, ranks, *args, **kwargs)
            if made[0] is not None and hasattr(made[0], "group_name"):
                self._groups.append((before_ns, made[0].group_name, members))
            return made

        return make

    def _sending(self, name: str, original: Any) -> Any:  # noqa: ANN401 - torch's
        def move(group: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - torch's
            self._messages.append(self._message(name, group, tensors, args))
            return original(group, tensors, *args, **kwargs)

        return move

    def _message(self, name: str, group: Any, tensors: Any, args: Sequence[Any]) -> Issued:  # noqa: ANN401 - torch's
        own = group.rank()
        op = f"send {own}->{args[0]}" if name == "send" else f"recv {own}<-{args[0]}"
        if name == "recv_anysource":
            op = "recvAnySource"
        moved = [_name_of(each.dtype) for each in tensors], [list(each.shape) for each in tensors]
        ranks = self._ranks_of(group.group_name, time.time_ns())
        return _call(op, [moved, moved], ranks, _site())

    def _ranks_of(self, name: str, at_ns: int) -> tuple[int, ...]:
        """Return the ranks of the group that had a name at a time."""
        found = [ranks for since, own, ranks in self._groups if own == name and since <= at_ns]
        return found[-1] if found else ()

    def calls(self) -> tuple[list[Issued], list[Issued]]:
        """Return the collectives and the messages so far."""
        entries = [entry for entry in self._entries() if entry["record_id"] >= self._first_id]
        if entries:
            self.num_lost = entries[0]["record_id"] - self._first_id
        found = []
        for entry in entries:
            ranks = self._ranks_of(entry["process_group"][0], entry["time_created_ns"])
            found.append((_issued(entry, ranks), entry["is_p2p"]))
        collectives, messages = _split(found)
        return collectives, self._messages if self._is_gloo else messages


def _name_of(dtype: Any) -> str:  # noqa: ANN401 - torch's
    return dtype_name(str(dtype).removeprefix("torch."))


def _site() -> tuple[str | None, int | None]:
    frame: Any = sys._getframe(1)  # noqa: SLF001 - what inspect uses, at a hundredth of the cost
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return None, None
