"""Abnormal ends of ranks, with names and attributes of torch.multiprocessing."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from simrank.errors.base import SimulationError
from simrank.errors.pickling import Travels

if TYPE_CHECKING:
    from collections.abc import Mapping


class RankAborted(Travels, SystemExit):
    """Thrown into a rank at its wait point because another rank of its group failed.

    Attributes:
        rank: The rank that is ended.
    """

    def __init__(self, rank: int | None) -> None:
        self.rank = rank
        super().__init__("another rank of the group failed")


class ProcessException(SimulationError):  # noqa: N818 - torch's name
    """Base class of spawn's errors; names and attributes as in torch.multiprocessing.

    Attributes:
        msg: The text.
        error_index: The rank.
        pid: The simulated process id (also `error_pid`).
    """

    def __init__(self, msg: str, error_index: int, pid: int) -> None:
        super().__init__(msg)
        self.msg = msg
        self.error_index = error_index
        self.pid = self.error_pid = pid


class ProcessRaisedException(ProcessException):
    """A rank raised an exception."""


class SpawnException(ProcessRaisedException):
    """One or more ranks raised; the lowest is the one described first.

    Attributes:
        errors: Rank -> the exception it raised, own type kept; root causes only.
        consequences: Rank -> the PeerDiedError that it ended with, because another rank had died.
        stubborn: Ranks that swallowed every abort and were parked.
    """

    def __init__(
        self, msg: str, error_index: int, pid: int, *, errors: Mapping[int, BaseException]
    ) -> None:
        super().__init__(msg, error_index, pid)
        self.errors = dict(errors)
        self.consequences: dict[int, BaseException] = {}
        self.stubborn: tuple[int, ...] = ()


class ProcessExitedException(ProcessException):
    """A rank called `sys.exit` with a non-zero code, or was terminated.

    Attributes:
        exit_code: The code; minus the signal's number if it was terminated.
        signal_name: That signal's name, for example "SIGTERM", or None.
    """

    def __init__(
        self,
        msg: str,
        error_index: int,
        error_pid: int,
        exit_code: int,
        signal_name: str | None = None,
    ) -> None:
        super().__init__(msg, error_index, error_pid)
        self.exit_code = exit_code
        self.signal_name = signal_name


def as_torchs(error: ProcessException) -> ProcessException:
    """Return an error that is torch's as well, where the program could catch that one."""
    torch_mp: Any = sys.modules.get("torch.multiprocessing")
    if not hasattr(torch_mp, "ProcessRaisedException"):  # Not there, or being imported.
        return error
    has_raised = isinstance(error, ProcessRaisedException)
    base = torch_mp.ProcessRaisedException if has_raised else torch_mp.ProcessExitedException
    kind = type(error)
    names = {
        "__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__,
        "__reduce__": lambda _: error.__reduce__(),
    }  # fmt: skip
    both = type(kind.__name__, (kind, base), names)
    made: ProcessException = both.__new__(both, *error.args)
    made.args = error.args
    for name, value in vars(error).items():  # torch's classes have slots for some.
        setattr(made, name, value)
    made.__cause__, made.__suppress_context__ = error.__cause__, error.__suppress_context__
    return made
