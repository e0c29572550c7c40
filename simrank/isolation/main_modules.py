"""A rank's `__main__`: its script, which each process that it spawns runs again."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from simrank.errors.base import add_note
from simrank.isolation import finalizers
from simrank.isolation.private_modules import private_modules

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
    """Execute a script as the main module of the running program."""
    own = private_modules(program)
    names = {"__name__": name, **main.names}
    if own is not None:  # What it defines may be pickled by name.
        own.main = main
        module = ModuleType(name)
        module.__dict__.update(names)
        for each in _NAMES:
            own.put(each, module)
        names = module.__dict__
        finalizers.keep_script(program, names)
    exec(main.code, names)  # noqa: S102 - that is what running a script means


def has_file() -> bool:
    """Return whether the process's main program can be executed again: at a prompt, it cannot."""
    file = getattr(sys.modules["__main__"], "__file__", None)
    return file is not None and Path(file).is_file()


def of(program: Program) -> Main | None:
    """Return the script of a program, for ranks that execute it as processes would.

    That of the main program is read from its file.
    """
    own = private_modules(program)
    if own is not None:
        return own.main
    main: Any = sys.modules["__main__"]
    spec, names = main.__spec__, {"__file__": main.__file__, "__builtins__": __builtins__}
    if spec is None:
        return Main(compile(Path(main.__file__).read_bytes(), main.__file__, "exec"), names)
    return Main(
        spec.loader.get_code(spec.name), names | {"__spec__": spec, "__package__": spec.parent}
    )


def is_main(name: str) -> bool:
    """Return whether a module's name is that of the main program, here or in a child process."""
    return name in _NAMES


def begin_process(program: Program) -> None:
    """Execute the script of the spawning program, as processes of multiprocessing do."""
    own = private_modules(program)
    if own is None or own.begins_with is None:
        return
    own.is_beginning = True
    try:
        execute(program, own.begins_with, "__mp_main__")
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
    of: Program | None = program
    while of is not None:  # The rank itself, or one that has entered the Context it spawns in.
        own = private_modules(of)
        if own is not None and own.is_beginning:
            raise RuntimeError(
                "a spawned process executes the script first, and this one would spawn again\n"
                '  to fix: start processes under `if __name__ == "__main__":`'
            )
        of = of.outer
