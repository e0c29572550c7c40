"""Jobs that run on both sides, and the records of their ranks."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any

from simrank.errors import ConfigError, SimrankError
from simrank.isolation.carrier_choice import will_import
from simrank.multiprocessing.script import load_script, program_imports

if TYPE_CHECKING:
    from collections.abc import Mapping

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
class Record:
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
class Side:
    """One of the two runs.

    Attributes:
        about: On what it ran.
        records: Of each rank.
        failure: What the whole run ended with, or "".
        device: The GPU's name, or "" where there is none.
        per_node: Ranks that share a node; None: all of them.
    """

    about: str
    records: list[Record]
    failure: str = ""
    device: str = ""
    per_node: int | None = None
