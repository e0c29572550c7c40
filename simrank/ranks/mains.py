"""A rank's `__main__`: the script that it runs, and runs again in each process that it spawns."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

from simrank.errors.travel import add_note
from simrank.ranks.packages import private_modules

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import CodeType

    from simrank.ranks.current import Program

_NAMES = ("__main__", "__mp_main__")  # multiprocessing gives a program both.


@dataclass(frozen=True)
class Main:
    """A script, ready to be executed.

    Attributes:
        code: Of the file.
        names: What is there before it runs, but for `__name__`.
    """

    code: CodeType
    names: Mapping[str, Any]


def execute(program: Program, main: Main, name: str = "__main__") -> None:
    """Let a script be the main module of who runs, under the name that it sees."""
    own = private_modules(program)
    names = {"__name__": name, **main.names}
    if own is not None:  # What it defines may be pickled by name.
        own.main = main
        module = ModuleType(name)
        module.__dict__.update(names)
        for each in _NAMES:
            own.put(each, module)
        names = module.__dict__
    exec(main.code, names)  # noqa: S102 - that is what running a script means


def begin_process(program: Program) -> None:
    """Execute the script of the rank that spawned this one, as processes of multiprocessing do."""
    own = private_modules(program)
    if own is None or own.parent is None or own.parent.main is None:
        return
    own.is_beginning = True
    try:
        execute(program, own.parent.main, "__mp_main__")
    except Exception as error:
        add_note(error, "simrank: raised as a spawned process executed the script, as __mp_main__")
        raise
    finally:
        own.is_beginning = False


def check_begun(program: Program) -> None:
    """Refuse to start processes from a script that is executed as a process begins.

    Raises:
        RuntimeError: It is; multiprocessing raises the same.
    """
    own = private_modules(program)
    if own is not None and own.is_beginning:
        raise RuntimeError(
            "a spawned process executes the script first, and this one would spawn again\n"
            '  to fix: start processes under `if __name__ == "__main__":`'
        )
